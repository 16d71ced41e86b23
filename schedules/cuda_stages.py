"""What the stages of fused attention on a GPU become: registers of threads, shared memory, calls."""

from __future__ import annotations

from typing import Any

from tvm.s_tir import Schedule

from tvm_attention.compute.device import DeviceTiles
from tvm_attention.schedules.register_tile import annotate

SHARED = "shared.dyn"  # what a launch asks for: static shared memory ends at 48 KiB
# Of a row of shared memory whose neighbours are read at once, in floats: with such a length, eight threads'
# vectors of four lie in different banks. Rows of no whole vectors are made odd instead.
_VECTOR_ROW, _ODD_ROW = (8, 4), (2, 1)
_TENSOR_ROW = (
    16,
    8,
)  # in 16-bit numbers: the rows of a matrix of eight by eight lie in different banks


def unroll(sch: Schedule, *loops: Any) -> None:
    for loop in loops:
        sch.unroll(loop)


def bind(sch: Schedule, row: Any, column: Any) -> None:
    sch.bind(row, "threadIdx.y")
    sch.bind(column, "threadIdx.x")


def in_registers(sch: Schedule, name: str, axes: int) -> None:
    """A stage whose last ``axes`` are (row thread, column thread, what it owns and sums over...) in the
    registers of its threads."""
    block = sch.get_sblock(name)
    sch.set_scope(block, 0, "local")
    row, column, *rest = sch.get_loops(block)[-axes:]
    bind(sch, row, column)
    unroll(sch, *rest)


def product(sch: Schedule, name: str, steps: int) -> None:
    """A product of two rows or of a row and a column, accumulated in registers; ``steps`` terms unrolled."""
    block = sch.get_sblock(name)
    sch.set_scope(block, 0, "local")
    row, column, own_row, own_column, k = sch.get_loops(block)[-5:]
    outer, inner = sch.split(k, [None, steps])
    sch.reorder(row, column, outer, inner, own_row, own_column)
    bind(sch, row, column)
    unroll(sch, inner, own_row, own_column)
    sch.decompose_reduction(block, outer)


def tensor_product(sch: Schedule, name: str) -> None:
    """A product in the registers of its threads, for lowering to make a call of."""
    block = sch.get_sblock(name)
    sch.set_scope(block, 0, "local")
    row, column, own_row, _, _ = sch.get_loops(block)[-5:]
    bind(sch, row, column)
    annotate(sch, own_row, {"tensor_product": int(name == "OT")})


def repair(sch: Schedule) -> None:
    in_registers(sch, "FLAG", 4)
    sch.decompose_reduction(sch.get_sblock("FLAG"), sch.get_loops(sch.get_sblock("FLAG"))[-1])
    block = sch.get_sblock("OX")
    sch.set_scope(block, 0, "local")
    row, column, own_row, own_column, k = sch.get_loops(block)[-5:]
    bind(sch, row, column)
    annotate(sch, own_row, {"if_nan": 1})
    unroll(sch, own_row, own_column)
    sch.decompose_reduction(block, k)


def shared_copy(sch: Schedule, name: str) -> None:
    """What threads tell the others of their rows."""
    block = sch.get_sblock(name)
    sch.set_scope(block, 0, SHARED)
    own_row, row, column = sch.get_loops(block)[-3:]
    sch.reorder(row, column, own_row)
    bind(sch, row, column)
    sch.unroll(own_row)


def weights(sch: Schedule) -> None:
    block = sch.get_sblock("PS")
    sch.set_scope(block, 0, SHARED)
    sch.storage_align(block, 0, -3, *_VECTOR_ROW)
    own_row, row, own_key, key = sch.get_loops(block)[-4:]
    sch.reorder(row, key, own_row, own_key)
    bind(sch, row, key)
    unroll(sch, own_row, own_key)


def rounded_weights(sch: Schedule) -> None:
    """Weights as 16-bit numbers: (warp, row, lane, columns by eight, column thread, column)."""
    block = sch.get_sblock("PS")
    sch.set_scope(block, 0, SHARED)
    sch.storage_align(block, 0, -4, *_TENSOR_ROW)
    warp, own_row, lane, group, thread, column = sch.get_loops(block)[-6:]
    sch.reorder(warp, lane, thread, own_row, group, column)
    bind(sch, sch.fuse(warp, lane), thread)
    unroll(sch, own_row, group, column)


def staged(sch: Schedule, name: str, tiles: DeviceTiles, vector: int) -> None:
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
    bind(sch, *sch.split(groups, [None, tiles.row_threads, tiles.column_threads])[1:])
    sch.vectorize(lane)
