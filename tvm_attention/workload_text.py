"""Workloads as text: the command line's form, and what messages say of one."""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING

from tvm_attention.errors import InvalidValueError

if TYPE_CHECKING:
    from tvm_attention.workload import AttentionWorkload

NO_OPTIONS = "no options"


def parsed_fields(text: str) -> dict[str, object]:
    """Fields by name from "head_dim=64,causal=top_left"; InvalidValueError unless each is name=value."""
    values: dict[str, object] = {}
    for part in filter(None, (p.strip() for p in text.split(","))):
        name, equals, value = (p.strip() for p in part.partition("="))
        if not equals or not value:
            raise InvalidValueError(f"workload: expected name=value, got {part!r} in {text!r}")
        if name in values:
            raise InvalidValueError(f"workload: {name} is given twice in {text!r}")
        values[name] = _parse(name, value)
    return values


def _parse(name: str, text: str) -> object:
    if name in ("dtype", "mask", "kv_dtype", "output"):
        return None if text.lower() == "none" else text
    if name == "causal":
        plain = {"none": None, "false": None, "true": "top_left"}
        return plain.get(text.lower(), text)
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    try:
        if name == "window":
            return None if text.lower() == "none" else tuple(int(n) for n in text.split(":"))
        return int(text)
    except ValueError:
        raise InvalidValueError(f"{name}: expected a whole number, got {text!r}") from None


def written(w: AttentionWorkload) -> str:
    """A workload as ``--workload`` takes it: the fields that are not their defaults."""
    implied = {"value_dim": w.head_dim, "kv_heads": w.query_heads}
    given = {f.name: getattr(w, f.name) for f in fields(w)}
    differing = {
        f.name: given[f.name]
        for f in fields(w)
        if f.name == "head_dim" or given[f.name] != implied.get(f.name, f.default)
    }
    return ",".join(f"{name}={_written(value)}" for name, value in differing.items())


def _written(value: object) -> str:
    if isinstance(value, tuple):
        return ":".join(str(x) for x in value)
    return str(value).lower() if isinstance(value, bool) else str(value)


def feature_text(w: AttentionWorkload) -> str:
    """What is compiled into a kernel beyond dtype and head dimensions, for messages."""
    named = {
        "causal": bool(w.causal), "window": w.window is not None, "mask": w.mask,
        "mask per key": w.mask_per_key, "mask dense": w.mask_dense, "softcap": w.softcap,
        "alibi": w.alibi, "sinks": w.sinks, "ragged": w.ragged, "paged": w.paged,
        "keys and values": w.kv_dtype,
        "output": None if w.output == "attention" else w.output,
    }  # fmt: skip
    given = (n if v is True else f"{n} {v}" for n, v in named.items() if v)
    return ", ".join(given) or NO_OPTIONS
