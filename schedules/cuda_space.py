"""The CUDA design space: which variants and tiles may serve a workload on an architecture.

Nothing here needs TVM, so that a record can be matched to a cached kernel without loading a compiler.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

from tvm_attention.dtypes import ELEMENT_BYTES
from tvm_attention.schedules.candidate import Candidate, Choices, DesignSpace
from tvm_attention.schedules.device import DeviceParameters
from tvm_attention.workload import AttentionWorkload

FUSED, FUSED_SPLIT_KV, FUSED_TENSOR = "fused", "fused_split_kv", "fused_tensor"
# Whether keys and values are copied to shared memory beside computing (tvm_attention.lowering.key_loop).
OVERLAP = "overlap"
MOST_LOADED = 4  # elements that a thread loads at once; copies take more, whose bytes these are:
_COPIED_BYTES = (4, 8, 16)
_STEPS = {
    "score_steps": (1, 2, 4, 8), "value_steps": (1, 2, 4, 8), "vector": (1, 2, 4), OVERLAP: (0, 1),
}  # fmt: skip
_FUSED_CHOICES = {
    "row_threads": (2, 4, 8, 16, 32),
    "column_threads": (8, 16, 32),
    "rows": (1, 2, 4, 8),
    "keys": (1, 2, 4, 8),
    **_STEPS,
}
_SPLIT_KV_CHOICES = {
    "row_threads": (1, 2, 4, 8),
    "column_threads": (16, 32, 64, 128),
    "rows": (1, 2, 4, 8),
    "keys": (1, 2, 4),
    **_STEPS,
}
_TENSOR_CHOICES = {
    "row_threads": (8, 16, 32, 64),  # eight a warp
    "column_threads": (4,),
    "rows": (2, 4),
    "keys": (4, 8, 16, 32),
    "vector": (1, 2, 4, 8),
    OVERLAP: (0, 1),
}
_LEAST_THREADS = 32
# Registers of a thread beyond its tiles: addresses, operands of a step, loop counters. nvcc's counts for the
# default candidates are 30 to 60 above the tiles.
_OTHER_REGISTERS = 48
_TENSOR_PADDING = 8  # 16-bit numbers of a row (tvm_attention.schedules.cuda_fused)
_BUFFER_ALIGNMENT = 64


def build(
    workload: AttentionWorkload,
    machine: DeviceParameters,
    candidate: Candidate,
    fixed: Any = None,
) -> Any:
    """The TVM schedule of a candidate, for all lengths or at fixed ones."""
    from tvm_attention.schedules import cuda_fused

    return cuda_fused.build(workload, candidate, fixed)


@dataclass(frozen=True, slots=True)
class Sizes:
    """What a candidate makes of a workload: a block's query rows and keys, a thread's value columns and
    how many of those are adjacent, elements of a row of keys and of weights in shared memory, and the
    bytes and registers it takes."""

    query_block: int
    key_block: int
    columns: int
    adjacent: int
    key_row: int
    weight_row: int
    shared: int
    registers: int
    threads: int


def sizes_of(w: AttentionWorkload, c: Candidate) -> Sizes:
    """The sizes of a candidate's tiles."""
    assert w.value_dim is not None
    across, rows = c["column_threads"], c["rows"]
    tensor = c.variant == FUSED_TENSOR
    columns = -(-w.value_dim // across)
    # As wide as 128-bit loads, unless that leaves threads without a column.
    adjacent = next(n for n in (4, 2, 1) if w.value_dim % (across * n) == 0 or n == 1)
    query_block, key_block = c["row_threads"] * rows, across * c["keys"]
    row, value_row, weight_row = w.head_dim, columns * across, key_block
    if tensor:
        adjacent = 2
        row, value_row, weight_row = (n + _TENSOR_PADDING for n in (row, value_row, weight_row))
    else:
        row, weight_row = _padded(row), _padded(weight_row)
    keys, values = key_block * row, key_block * value_row
    staged = (keys, values) if c[OVERLAP] else (max(keys, values),)
    size = 2 if tensor else 4
    # On tensor cores weights are multiplied from registers, and shown for the repair of sums alone.
    weights = query_block * weight_row if w.masks or not tensor else 0
    shared = sum(_whole(size * n) for n in (query_block * row, weights, *staged))
    shared += _whole(4 * query_block * across)  # a maximum a thread
    state = rows * (2 * columns + 2) + rows * c["keys"]  # sums so far and of the block, scores
    threads = c["row_threads"] * across
    registers = state + _OTHER_REGISTERS
    return Sizes(
        query_block, key_block, columns, adjacent, row, weight_row, shared, registers, threads
    )


def decode_rows(workload: AttentionWorkload) -> int | None:
    """Rows of a key-value head that split-KV serves; None for a prefill workload."""
    name = workload.length_class
    return int(name.removeprefix("decode-r")) if name.startswith("decode-r") else None


def kernel_of(w: AttentionWorkload) -> AttentionWorkload:
    """The workload that stands for all that one kernel serves."""
    return replace(
        w, batch=1, query_heads=1, kv_heads=1, query_length=decode_rows(w) or 512, key_length=512,
        causal=bool(w.causal), window=w.window and (1, 1),
    )  # fmt: skip


def _whole(size: int) -> int:
    """Bytes of a buffer in shared memory, where each begins at a whole multiple."""
    return -(-size // _BUFFER_ALIGNMENT) * _BUFFER_ALIGNMENT


def _padded(columns: int) -> int:
    """Floats of a row in shared memory (tvm_attention.schedules.cuda_fused)."""
    if columns % 4:
        return columns | 1
    return columns if columns % 8 == 4 else columns + 4


def _refusal(w: AttentionWorkload, m: DeviceParameters, c: Candidate) -> str | None:
    assert w.value_dim is not None
    s = sizes_of(w, c)
    if not _LEAST_THREADS <= s.threads <= m.threads_per_block or s.threads % m.warp:
        return f"{s.threads} threads are no whole warps of at most {m.threads_per_block} threads"
    if c.variant == FUSED_SPLIT_KV and s.query_block != decode_rows(w):
        return f"{s.query_block} rows are not the {decode_rows(w)} of the class"
    if s.shared > m.shared_per_block:
        return f"{s.shared} bytes of shared memory exceed the {m.shared_per_block} of a block"
    most = min(m.registers_per_thread, m.registers // s.threads)
    if s.registers > most:
        return f"some {s.registers} registers a thread exceed the {most} there are"
    if w.head_dim % c["vector"] or (s.columns * c["column_threads"]) % c["vector"]:
        return f"vector={c['vector']} does not divide a row"
    if w.value_dim % c["vector"]:
        return f"vector={c['vector']} does not divide the value dimension"
    reason = _overlap_refusal(w, m, c)
    if reason is not None:
        return reason
    if c.variant == FUSED_TENSOR:
        whole = s.key_block % 16 == 0 and c["row_threads"] % 8 == 0
        return None if whole else "tensor cores multiply sixteen keys and eight rows at a time"
    if w.head_dim % c["score_steps"]:
        return f"score_steps={c['score_steps']} does not divide the head dimension"
    if s.key_block % c["value_steps"]:
        return f"value_steps={c['value_steps']} does not divide the key block"
    return None


def _overlap_refusal(w: AttentionWorkload, m: DeviceParameters, c: Candidate) -> str | None:
    if not c[OVERLAP]:
        return f"vector={c['vector']} is for copies alone" if c["vector"] > MOST_LOADED else None
    if not m.copies:
        return "its copies to shared memory go through registers"
    if w.kv_dtype is not None or (c.variant != FUSED_TENSOR and w.dtype != "float32"):
        return "copies beside computing take keys and values as they are stored"
    size = c["vector"] * ELEMENT_BYTES[w.dtype]
    if size not in _COPIED_BYTES:
        return f"expected copies of 4, 8 or 16 bytes, got {size}"
    row = sizes_of(w, c).key_row  # a copy whose place is no whole multiple of its size is a fault
    return f"rows of {row} put copies of {c['vector']} out of place" if row % c["vector"] else None


def most_copied(w: AttentionWorkload, most: int) -> int:
    """Elements of a row that copies beside computing may take at once, at most ``most``; not on tensor
    cores, whose rows are whole."""
    return math.gcd(_padded(w.head_dim), w.head_dim, w.value_dim or 0, most)


def without_vectors(c: Candidate) -> Candidate:
    """The candidate that serves tensors whose addresses suit no vectors, on grids alike."""
    return c.replace(**{"vector": 1, OVERLAP: 0})


def tensor_serves(w: AttentionWorkload, m: DeviceParameters) -> bool:
    """Tensor cores multiply 16-bit numbers, sixteen columns at a time, as they lie in the tensors."""
    assert w.value_dim is not None
    whole = w.head_dim % 16 == 0 and w.value_dim % 16 == 0
    return w.dtype in m.tensor_dtypes and whole and w.kv_dtype is None


def design_space(workload: AttentionWorkload, machine: DeviceParameters) -> DesignSpace:
    """The variants that serve a workload, each with its decisions."""
    variants: dict[str, Choices] = {}
    if workload.output != "weights":
        variants[FUSED] = _FUSED_CHOICES
        if tensor_serves(workload, machine):
            variants[FUSED_TENSOR] = _TENSOR_CHOICES
    if variants and decode_rows(workload) is not None:
        variants[FUSED_SPLIT_KV] = _SPLIT_KV_CHOICES
    return DesignSpace(variants, lambda c: _refusal(workload, machine, c))
