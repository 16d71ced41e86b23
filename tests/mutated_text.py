"""Damage done to JSON files: by byte, and by value, so that it is deep inside what still parses."""

from __future__ import annotations

import copy
import json
from random import Random
from typing import Any

VALUES: list[Any] = [
    None, True, False, 0, 1, -1, 64, 2**31, 2**63, 10**400, 0.5, 1e308, float("nan"), float("inf"),
    "", " ", "x", "x86-64-v3", "x86-64-v4", "aarch64", "no_such_target", "arm", "cuda", "streaming",
    "matrix", "split_kv", "decode-r1", "long", "float16", "top_left", "..", ".", "../../etc/passwd",
    "/etc/passwd", "a\0b", "\ud800", "\x1b[2J", "line\nbreak", "9" * 20_000, "9" * 200_000, list(range(9999)),
    [], {}, [[]], [0, -1], {"": 0},
    {"query_block": 64}, "2025-02-30", "__import__('os')",
]  # fmt: skip


def mutated(data: bytes, rng: Random) -> bytes:
    """The data with one to three faults."""
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        data = _other_value(data, rng) if rng.random() < 0.7 else _other_bytes(data, rng)
    return data


def _other_value(data: bytes, rng: Random) -> bytes:
    """A line of JSON with a value, a name or the nesting changed; other data with bytes changed."""
    lines = data.split(b"\n")
    number = rng.randrange(len(lines))
    try:
        found = json.loads(lines[number])
        holder, name = _place(found, rng)
    except (ValueError, IndexError, RecursionError):
        return _other_bytes(data, rng)
    what = rng.random()
    if what < 0.7:
        holder[name] = copy.deepcopy(rng.choice(VALUES))
    elif what < 0.8:
        del holder[name]
    elif what < 0.9 and isinstance(holder, dict):
        holder[str(rng.choice(VALUES))[:50]] = holder.pop(name)
    else:
        holder[name] = _nested(holder[name], rng)
    lines[number] = json.dumps(found).encode()
    return b"\n".join(lines)


def _place(found: Any, rng: Random) -> tuple[Any, Any]:
    """A place somewhere in plain data: what holds it and its name or index there."""
    places: list[tuple[Any, Any]] = []
    todo = [found]
    while todo:
        holder = todo.pop()
        if isinstance(holder, (dict, list)):
            names = list(holder) if isinstance(holder, dict) else list(range(len(holder)))
            places += [(holder, name) for name in names]
            todo += [holder[name] for name in names]
    return places[rng.randrange(len(places))] if places else _nowhere()


def _nowhere() -> tuple[Any, Any]:
    raise IndexError("plain data without a place in it")


def _nested(value: Any, rng: Random) -> Any:
    for _ in range(rng.choice((1, 5, 200))):
        value = [value] if rng.random() < 0.5 else {"x": value}
    return value


def _other_bytes(data: bytes, rng: Random) -> bytes:
    at = rng.randrange(len(data) + 1)
    end = min(len(data), at + rng.choice((1, 2, 10, 100)))
    what = rng.randrange(6)
    if what == 0:
        return data[:at]
    if what == 1:
        return data[:at] + data[end:]
    if what == 2:
        return data[:at] + data[at:end] * 2 + data[end:]
    if what == 3:
        return data[:at] + rng.choice((b"[" * 100_000, b"9" * 5000, b'{"a":' * 30_000)) + data[at:]
    if what == 4:
        return data[:at] + rng.randbytes(end - at) + data[end:]
    return (
        data[:at] + rng.choice((b"\n", b"\r", b"\0", b"\xff", b"NaN", b"1e999", b'"')) + data[at:]
    )
