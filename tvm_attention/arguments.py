"""The arguments of a kernel: one calling convention for all variants, in one place.

Every kernel takes the addresses of query, key, value, out and a workspace, then :data:`SCALARS`, then the
strides of the four tensors, then what its workload's features add (:func:`extras`).
"""

from __future__ import annotations

from dataclasses import dataclass

from tvm_attention.workload import AttentionWorkload

TENSORS = ("query", "key", "value", "out")
STRIDES = ("batch", "head", "row")

# One order for all variants, so that a caller need not know which variant serves it. kv_batches and
# key_rows are the extents of the key tensor in memory: packed sequences are one batch of all their rows.
SCALARS = (
    "batch",
    "query_heads",
    "group",
    "query_length",
    "key_length",
    "kv_batches",
    "key_rows",
    "causal_offset",
    "threads",
    "splits",
    "scale_log2",
)

# How a dtype is held in memory by TVM, whose own bfloat16 needs passes that lowering does not run.
STORAGE = {
    "float32": "float32",
    "float16": "float16",
    "bfloat16": "uint16",
    "int8": "int8",
    "bool": "uint8",
    "int32": "int32",
}
RAGGED_FIELDS = ("query_start", "queries", "key_start", "keys")


@dataclass(frozen=True, slots=True)
class Argument:
    """A scalar of ``dtype``, or the address of a buffer of elements of ``dtype``."""

    name: str
    dtype: str
    buffer: bool = False


def extras(w: AttentionWorkload) -> tuple[Argument, ...]:
    """What a workload's features add to the arguments, in order.

    mask: any strides. window_left, window_right: keys on either side, 2**30 for all. softcap_log2: the
    cap times log2(e). slopes: (batch, query_heads) float32. sinks: (query_heads,) float32. ragged: (batch,
    4) int32, RAGGED_FIELDS of each batch element. table: int32 page numbers of each batch element;
    pages hold 2**page_shift keys. key_scale, value_scale: float32, (batch, kv head, key) strides. lse:
    float32, (batch, head) strides, dense rows.
    """
    arguments: list[Argument] = []
    if w.mask is not None:
        arguments.append(Argument("mask", w.mask, buffer=True))
        arguments += _strides("mask", (*STRIDES, "column"))
    if w.window is not None:
        arguments += [Argument("window_left", "int32"), Argument("window_right", "int32")]
    if w.softcap:
        arguments.append(Argument("softcap_log2", "float32"))
    if w.alibi:
        arguments.append(Argument("slopes", "float32", buffer=True))
    if w.sinks:
        arguments.append(Argument("sinks", "float32", buffer=True))
    if w.ragged:
        arguments.append(Argument("ragged", "int32", buffer=True))
    if w.paged:
        arguments += [Argument("table", "int32", buffer=True), Argument("page_shift", "int32")]
        arguments += _strides("table", ("batch",))
        arguments += [Argument(f"{n}_page_stride", "int64") for n in ("key", "value")]
    if w.kv_dtype is not None:
        for name in ("key_scale", "value_scale"):
            arguments.append(Argument(name, "float32", buffer=True))
            arguments += _strides(name, STRIDES)
    if w.output == "attention_and_lse":
        arguments.append(Argument("lse", "float32", buffer=True))
        arguments += _strides("lse", STRIDES[:2])
    return tuple(arguments)


def arrays_beside(w: AttentionWorkload) -> tuple[int, ...]:
    """Which arguments of a workload's kernel are the addresses of the mask and the log-sum-exp, if any."""
    names = [a.name for a in extras(w)]
    first = len(TENSORS) + 1 + len(SCALARS) + len(TENSORS) * len(STRIDES)
    return tuple(first + names.index(name) for name in ("mask", "lse") if name in names)


def _strides(name: str, axes: tuple[str, ...]) -> list[Argument]:
    return [Argument(f"{name}_{axis}_stride", "int64") for axis in axes]
