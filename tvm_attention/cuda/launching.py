"""What a launch is told: the sizes of its grids, the parameters of its functions by name."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Any

from tvm_attention.arguments import SCALARS, STRIDES, TENSORS, extras
from tvm_attention.operands import Geometry
from tvm_attention.schedules import Candidate
from tvm_attention.schedules.cuda_space import FUSED_SPLIT_KV, sizes_of
from tvm_attention.workload import AttentionWorkload

WORKSPACE = "PART"  # the parameter for what a grid leaves to the next, by the name of its stage
_BLOCKS_A_MULTIPROCESSOR = 4  # of split-KV, together: enough for the latency of loads
_C_TYPES: dict[str, Any] = {
    "address": ctypes.c_void_p,
    "int32": ctypes.c_int32,
    "int64": ctypes.c_int64,
    "float32": ctypes.c_float,
}


@dataclass(frozen=True, slots=True)
class Grids:
    """The blocks of threads of each function of a candidate, into how many splits the keys go, and the
    float32 elements of workspace."""

    blocks: tuple[int, ...]
    splits: int = 1
    workspace: int = 0


def grids(w: AttentionWorkload, c: Candidate, call: Geometry, multiprocessors: int) -> Grids:
    """The grids that serve a call on a GPU of so many multiprocessors."""
    sizes = sizes_of(w, c)
    if c.variant != FUSED_SPLIT_KV:
        blocks = -(-call.query_length // sizes.query_block)
        return Grids((call.batch * call.query_heads * blocks,))
    heads = call.batch * call.kv_heads
    wanted = -(-_BLOCKS_A_MULTIPROCESSOR * multiprocessors // heads)
    splits = max(1, min(wanted, -(-call.key_length // sizes.key_block)))
    part = sizes.query_block * c["column_threads"] * (sizes.columns + 2)
    return Grids((heads * splits, heads), splits, heads * splits * part)


@dataclass(frozen=True, slots=True)
class GridFormulas:
    """The same as :class:`Grids` in the parameters of a call, for who launches kernels by other means."""

    blocks: tuple[str, ...]
    most_splits: str
    workspace: str


def grid_formulas(w: AttentionWorkload, c: Candidate) -> GridFormulas:
    """The grids of a candidate, of which a caller may choose the splits."""
    sizes = sizes_of(w, c)
    if c.variant != FUSED_SPLIT_KV:
        n = sizes.query_block
        return GridFormulas((f"batch * query_heads * ((query_length + {n - 1}) // {n})",), "1", "0")
    heads, n = "batch * (query_heads // group)", sizes.key_block
    part = sizes.query_block * c["column_threads"] * (sizes.columns + 2)
    return GridFormulas(
        (f"{heads} * splits", heads),
        f"(key_length + {n - 1}) // {n}",
        f"{heads} * splits * {part}",
    )


def parameter_kinds(workload: AttentionWorkload) -> dict[str, str]:
    """What all parameters of a workload's functions are by name: "address", "int32", "int64", "float32"."""
    kinds = dict.fromkeys((*TENSORS, WORKSPACE), "address")
    kinds |= {n: "float32" if n == "scale_log2" else "int32" for n in SCALARS}
    kinds |= {f"{t}_{a}_stride": "int64" for t in TENSORS for a in STRIDES}
    return kinds | {e.name: "address" if e.buffer else e.dtype for e in extras(workload)}


def parameter_types(workload: AttentionWorkload) -> dict[str, Any]:
    """The C types of :func:`parameter_kinds`."""
    return {name: _C_TYPES[kind] for name, kind in parameter_kinds(workload).items()}
