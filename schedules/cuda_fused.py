"""Schedule of fused attention on a GPU: stages to threads, registers and shared memory."""

from __future__ import annotations

from typing import Any

from tvm import tirx
from tvm.s_tir import Schedule

from tvm_attention.compute import FixedLengths, Problem
from tvm_attention.compute.device import DeviceTiles
from tvm_attention.compute.fused import fused, fused_split_kv
from tvm_attention.schedules.candidate import Candidate
from tvm_attention.schedules.cuda_space import FUSED_SPLIT_KV, FUSED_TENSOR, sizes_of
from tvm_attention.schedules.register_tile import annotate
from tvm_attention.schedules.stages import place, present
from tvm_attention.workload import AttentionWorkload

SHARED = "shared.dyn"  # what a launch asks for: static shared memory ends at 48 KiB
# Of a row of shared memory whose neighbours are read at once, in floats: with such a length, eight threads'
# vectors of four lie in different banks. Rows of no whole vectors are made odd instead.
_VECTOR_ROW, _ODD_ROW = (8, 4), (2, 1)
_TENSOR_ROW = (16, 8)  # in 16-bit numbers: the rows of a matrix of eight by eight lie in different banks
# Stages of a block of keys, as they hang from its end. VT is loaded before the barrier that MS needs anyway.
_BLOCK_STAGES = ("OX", "FLAG", "OT", "PS", "LP", "P", "M", "VT", "MS", "MP", "SC", "ST", "KT")


def tiles_of(workload: AttentionWorkload, c: Candidate) -> DeviceTiles:
    """The tiles of a candidate, as the expression has them."""
    sizes = sizes_of(workload, c)
    return DeviceTiles(
        c["row_threads"],
        c["column_threads"],
        c["rows"],
        c["keys"],
        sizes.columns,
        sizes.adjacent,
        split=c.variant == FUSED_SPLIT_KV,
        tensor=c.variant == FUSED_TENSOR,
    )


def build(
    workload: AttentionWorkload, candidate: Candidate, fixed: FixedLengths | None = None
) -> Schedule:
    """The scheduled kernel of a candidate."""
    tiles = tiles_of(workload, candidate)
    problem = Problem(workload, fixed, exp2_unit=True, aligned=candidate["vector"])
    if tiles.split:
        return schedule_fused_split_kv(fused_split_kv(problem, tiles), candidate, tiles)
    return schedule_fused(fused(problem, tiles), candidate, tiles)


def schedule_fused(func: tirx.PrimFunc, c: Candidate, tiles: DeviceTiles) -> Schedule:
    """One block of threads a (batch, query head, block of queries)."""
    sch = Schedule(func, enable_check=False)
    task = _launch(sch, "O")
    place(sch, ("LSE", "N"), task)
    for name in present(sch, ("LSE", "N")):
        _own(sch, name, 3)
    _running_state(sch, c, tiles, task)
    return sch


def schedule_fused_split_kv(func: tirx.PrimFunc, c: Candidate, tiles: DeviceTiles) -> Schedule:
    """One block of threads a (batch, key-value head, split), then one a (batch, key-value head)."""
    sch = Schedule(func, enable_check=False)
    _running_state(sch, c, tiles, _launch(sch, "PART"))
    task = _launch(sch, "O")
    place(sch, ("LSE", "N", "OS", "TS", "MM"), task)
    for name in present(sch, ("LSE", "N")):
        _own(sch, name, 3)
    for name in ("MM", "TS", "OS"):
        block = sch.get_sblock(name)
        sch.set_scope(block, 0, "local")
        row, column, *own, split = sch.get_loops(block)[-5 if name == "OS" else -4 :]
        sch.reorder(row, column, split, *own)
        _bind(sch, row, column)
        _unroll(sch, *own)
        sch.decompose_reduction(block, split)
    return sch


def _launch(sch: Schedule, name: str) -> Any:
    """Blocks and threads of a stage (task..., row thread, column thread, row, column). Returns the
    innermost loop over tasks."""
    *task, row, column, own, last = sch.get_loops(sch.get_sblock(name))
    for loop, axis in zip(task, "zyx", strict=False):  # lowering makes one axis of them
        sch.bind(loop, f"blockIdx.{axis}")
    _bind(sch, row, column)
    _unroll(sch, own, last)
    return task[-1]


def _running_state(sch: Schedule, c: Candidate, tiles: DeviceTiles, task: Any) -> None:
    """The loop over blocks of keys inside a task, and the sums of its rows."""
    place(sch, ("LT", "LS", "R"), task)
    _own(sch, "LT", 4)
    sch.decompose_reduction(sch.get_sblock("LT"), sch.get_loops(sch.get_sblock("LT"))[-1])
    _shared_copy(sch, "LS")
    R = sch.get_sblock("R")
    i0, c0, i1, kb = sch.get_loops(R)[-4:]
    sch.reorder(kb, i0, c0, i1)
    annotate(sch, kb, {"key_block": tiles.key_block})
    place(sch, _BLOCK_STAGES, kb)
    place(sch, ("QT",), task)
    _bind(sch, i0, c0)
    sch.unroll(i1)
    for field in range(tiles.columns + 2):
        sch.set_scope(R, field, "local")
    sch.decompose_reduction(R, kb)
    for name in ("SC", "P"):
        _own(sch, name, 4)
    for name in ("MP", "M", "LP"):
        _own(sch, name, 4)
        sch.decompose_reduction(sch.get_sblock(name), sch.get_loops(sch.get_sblock(name))[-1])
    if tiles.tensor:
        for name in ("ST", "OT"):
            _tensor_product(sch, name)
    else:
        _product(sch, "ST", c["score_steps"])
        _product(sch, "OT", c["value_steps"])
    if present(sch, ("OX",)):
        _repair(sch)
    _shared_copy(sch, "MS")
    if tiles.tensor:
        _rounded_weights(sch)
    else:
        _weights(sch)
    for name in ("QT", "KT", "VT"):
        _staged(sch, name, tiles, c["vector"])


def _unroll(sch: Schedule, *loops: Any) -> None:
    for loop in loops:
        sch.unroll(loop)


def _bind(sch: Schedule, row: Any, column: Any) -> None:
    sch.bind(row, "threadIdx.y")
    sch.bind(column, "threadIdx.x")


def _own(sch: Schedule, name: str, axes: int) -> None:
    """A stage whose last ``axes`` are (row thread, column thread, what it owns and sums over...) in the
    registers of its threads."""
    block = sch.get_sblock(name)
    sch.set_scope(block, 0, "local")
    row, column, *rest = sch.get_loops(block)[-axes:]
    _bind(sch, row, column)
    _unroll(sch, *rest)


def _product(sch: Schedule, name: str, steps: int) -> None:
    """A product of two rows or of a row and a column, accumulated in registers; ``steps`` terms unrolled."""
    block = sch.get_sblock(name)
    sch.set_scope(block, 0, "local")
    row, column, own_row, own_column, k = sch.get_loops(block)[-5:]
    outer, inner = sch.split(k, [None, steps])
    sch.reorder(row, column, outer, inner, own_row, own_column)
    _bind(sch, row, column)
    _unroll(sch, inner, own_row, own_column)
    sch.decompose_reduction(block, outer)


def _tensor_product(sch: Schedule, name: str) -> None:
    """A product in the registers of its threads, for lowering to make a call of."""
    block = sch.get_sblock(name)
    sch.set_scope(block, 0, "local")
    row, column, own_row, _, _ = sch.get_loops(block)[-5:]
    _bind(sch, row, column)
    annotate(sch, own_row, {"tensor_product": int(name == "OT")})


def _repair(sch: Schedule) -> None:
    _own(sch, "FLAG", 4)
    sch.decompose_reduction(sch.get_sblock("FLAG"), sch.get_loops(sch.get_sblock("FLAG"))[-1])
    block = sch.get_sblock("OX")
    sch.set_scope(block, 0, "local")
    row, column, own_row, own_column, k = sch.get_loops(block)[-5:]
    _bind(sch, row, column)
    annotate(sch, own_row, {"if_nan": 1})
    _unroll(sch, own_row, own_column)
    sch.decompose_reduction(block, k)


def _shared_copy(sch: Schedule, name: str) -> None:
    """What threads tell the others of their rows."""
    block = sch.get_sblock(name)
    sch.set_scope(block, 0, SHARED)
    own_row, row, column = sch.get_loops(block)[-3:]
    sch.reorder(row, column, own_row)
    _bind(sch, row, column)
    sch.unroll(own_row)


def _weights(sch: Schedule) -> None:
    block = sch.get_sblock("PS")
    sch.set_scope(block, 0, SHARED)
    sch.storage_align(block, 0, -3, *_VECTOR_ROW)
    own_row, row, own_key, key = sch.get_loops(block)[-4:]
    sch.reorder(row, key, own_row, own_key)
    _bind(sch, row, key)
    _unroll(sch, own_row, own_key)


def _rounded_weights(sch: Schedule) -> None:
    """Weights as 16-bit numbers: (warp, row, lane, columns by eight, column thread, column)."""
    block = sch.get_sblock("PS")
    sch.set_scope(block, 0, SHARED)
    sch.storage_align(block, 0, -4, *_TENSOR_ROW)
    warp, own_row, lane, group, thread, column = sch.get_loops(block)[-6:]
    sch.reorder(warp, lane, thread, own_row, group, column)
    _bind(sch, sch.fuse(warp, lane), thread)
    _unroll(sch, own_row, group, column)


def _staged(sch: Schedule, name: str, tiles: DeviceTiles, vector: int) -> None:
    """A copy that all threads of a block make together, ``vector`` elements at a time."""
    block = sch.get_sblock(name)
    sch.set_scope(block, 0, SHARED)
    row, column = sch.get_loops(block)[-2:]
    if tiles.tensor:
        sch.storage_align(block, 0, -2, *_TENSOR_ROW)
    elif name != "VT":  # whose rows are read one at a time
        whole = int(sch.get(column).extent) % 4 == 0
        sch.storage_align(block, 0, -2, *(_VECTOR_ROW if whole else _ODD_ROW))
    groups, lane = sch.split(sch.fuse(row, column), [None, vector])
    _bind(sch, *sch.split(groups, [None, tiles.row_threads, tiles.column_threads])[1:])
    sch.vectorize(lane)
