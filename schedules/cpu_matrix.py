"""Schedule of running attention on a matrix unit: tiles of products are its calls, the rest is vectors."""

from __future__ import annotations

from typing import Any

from tvm import tirx
from tvm.s_tir import Schedule

from tvm_attention.compute.matrix import SCORE_ROWS
from tvm_attention.compute.matrix_operands import DEPTH, TILE_ROWS
from tvm_attention.schedules.candidate import Candidate
from tvm_attention.schedules.cpu_running import (
    LAST_STRIPS,
    non_finite,
    running_maximum,
    valid_strips,
)
from tvm_attention.schedules.cpu_task import ENDS, Widths, edges, look_for_non_finite, query_task
from tvm_attention.schedules.register_tile import annotate, transposition, vectorise_last
from tvm_attention.schedules.stages import place, present

COLUMNS = 32  # of a call


def schedule_matrix(
    func: tirx.PrimFunc, c: Candidate, w: Widths, mask_alone: bool = False
) -> Schedule:
    """A task is ``query_strips`` strips of queries; keys and values of a block are packed once for them."""
    sch = Schedule(func, enable_check=False)
    task = query_task(sch, c["query_block"], c["query_strips"])
    annotate(sch, task, {"matrix_task": 1})
    place(sch, (*ENDS, "RX", "EX", "R"), task)
    block, strip = _accumulators(sch, c, w.lanes)
    place(sch, ("L", "PB", "P", "A", "D", "RM", "M", "SC"), strip)
    _scores(sch, c, w.lanes, strip, mask_alone)
    _weights(sch, c, w.lanes)
    place(sch, ("VP", "VT", "KP"), block)
    _packed_keys(sch, w)
    _packed_values(sch, w)
    place(sch, ("QB", "QT"), task)
    _queries(sch, c, w)
    for name in ("A", "D", "RM"):
        vectorise_last(sch, sch.get_sblock(name), w.lanes)
    for name in present(sch, ("ONES",)):
        vectorise_last(sch, sch.get_sblock(name), w.lanes)
    valid_strips(sch, c, LAST_STRIPS)
    non_finite(sch, c, w.lanes)
    edges(sch, w)
    look_for_non_finite(sch)
    return sch


def _product(sch: Schedule, name: str, loops: list[Any], row_tiles: int) -> None:
    """Let lowering call the matrix unit for the nest of these loops."""
    annotate(sch, loops[0], {"matrix_product": row_tiles})
    for loop in loops:
        annotate(sch, loop, {"tile": 1})


def _accumulators(sch: Schedule, c: Candidate, lanes: int) -> tuple[Any, Any]:
    """R, whose update takes up a tile of P V. Returns the loops over key blocks and query strips."""
    R, OT = sch.get_sblock("R"), sch.get_sblock("OT")
    query_strip, row, column, block = sch.get_loops(R)[-4:]
    tile, row_in = sch.split(row, [None, c["value_rows"]])
    strip, vector, lane = sch.split(column, [None, COLUMNS // lanes, lanes])
    sch.reorder(block, query_strip, strip, tile, row_in, vector, lane)
    annotate(sch, block, {"key_block": c["key_block"]})
    annotate(sch, query_strip, {"query_strip": c["query_block"]})
    if c["overlapped"]:
        annotate(sch, query_strip, {"overlapped": 1})
    sch.compute_at(OT, tile, preserve_unit_loops=True)
    _product(sch, "OT", sch.get_loops(OT)[-5:], c["value_rows"] // TILE_ROWS)
    annotate(sch, tile, {"value_tile": 1})
    annotate(sch, strip, {"valid_rows": COLUMNS})
    sch.unroll(vector)
    annotate(sch, vector, {"query_vectors": 1})
    sch.vectorize(lane)
    clear = sch.get_loops(sch.decompose_reduction(R, block))[-6]  # the outermost of its own: strips
    annotate(sch, clear, {"unless_key_blocks": c["key_block"]})
    return block, query_strip


def _scores(sch: Schedule, c: Candidate, lanes: int, query_strip: Any, mask_alone: bool) -> None:
    """Products, what is done to them, and their maximum while a tile is in cache."""
    modified = present(sch, ("SC",))
    name = modified[0] if modified else "ST"
    if not modified:
        place(sch, ("ST",), query_strip)
    scores = sch.get_sblock(name)
    loops = sch.get_loops(scores)
    tile, row, column = loops[-3:] if modified else loops[-6:-3]
    strip, column_in = sch.split(column, [None, COLUMNS])
    sch.reorder(tile, strip, row, column_in)
    annotate(sch, tile, {"block_keys": SCORE_ROWS})
    annotate(sch, strip, {"valid_rows": COLUMNS})
    if c["overlapped"]:
        annotate(sch, tile, {"scores_ahead": 1})
    if modified:
        _modified(sch, lanes, strip, row, column_in)
        if mask_alone:
            annotate(sch, row, {"unless_without_effect": 1})
    else:
        _product(sch, "ST", sch.get_loops(scores)[-5:], SCORE_ROWS // TILE_ROWS)
    running_maximum(sch, lanes, tile, strip, unrolled=False)


def _modified(sch: Schedule, lanes: int, strip: Any, row: Any, column: Any) -> None:
    vector, lane = sch.split(column, [None, lanes])
    sch.unroll(vector)
    annotate(sch, vector, {"query_vectors": 1})
    sch.vectorize(lane)
    for name in present(sch, ("MT",)):
        sch.compute_at(sch.get_sblock(name), strip, preserve_unit_loops=True)
        transposition(sch, name, min(lanes, TILE_ROWS), lanes, query_axis=1)
    products = sch.get_sblock("ST")
    sch.compute_at(products, strip, preserve_unit_loops=True)
    _product(sch, "ST", sch.get_loops(products)[-5:], SCORE_ROWS // TILE_ROWS)


def _weights(sch: Schedule, c: Candidate, lanes: int) -> None:
    """Weights, two keys at a time, their sum, and their pieces: from and to memory once."""
    P, PB, L = (sch.get_sblock(name) for name in ("P", "PB", "L"))
    sch.set_scope(P, 0, "local")
    key, column = sch.get_loops(P)[-2:]
    run, pair, key_in = sch.split(key, [None, DEPTH // 2, 2])
    vector, lane = sch.split(column, [None, lanes])
    sch.reorder(run, pair, vector, key_in, lane)
    annotate(sch, run, {"block_keys": DEPTH})
    if c["overlapped"]:
        annotate(sch, run, {"weights_beside": 1})
    annotate(sch, vector, {"query_vectors": 1})
    for loop in (vector, key_in):
        sch.unroll(loop)
    sch.vectorize(lane)
    for block in (L, PB):
        sch.reverse_compute_at(block, vector, preserve_unit_loops=True)
    _, piece, column = sch.get_loops(PB)[-3:]
    sch.unroll(piece)
    sch.vectorize(column)
    column, over = sch.get_loops(L)[-2:]
    sch.reorder(over, column)
    sch.vectorize(column)
    vectorise_last(sch, sch.decompose_reduction(L, run), lanes, unroll=True)


def _packed_keys(sch: Schedule, w: Widths) -> None:
    row_tile, step, piece, row, column = sch.get_loops(sch.get_sblock("KP"))[-5:]
    run, row_tile = sch.split(row_tile, [None, SCORE_ROWS // TILE_ROWS])
    vector, lane = sch.split(column, [None, w.head])
    sch.reorder(run, row_tile, row, step, vector, piece, lane)
    annotate(sch, run, {"block_keys": SCORE_ROWS})
    sch.unroll(piece)
    sch.vectorize(lane)


def _packed_values(sch: Schedule, w: Widths) -> None:
    """Transposed by tiles, then split into pieces; bfloat16 values by pairs of keys."""
    if not present(sch, ("VT",)):
        row_tile, step, piece, row, pair = sch.get_loops(sch.get_sblock("VP"))[-5:]
        sch.reorder(step, row_tile, piece, row, pair)
        annotate(sch, step, {"block_keys": DEPTH})
        annotate(sch, row_tile, {"pairs_of_rows": w.value_dim})
        return
    VT, VP = sch.get_sblock("VT"), sch.get_sblock("VP")
    column, key = sch.get_loops(VT)[-2:]
    size = min(w.value, TILE_ROWS)
    # Whole steps: beyond the last key its values are repeated, whose weights are next to nothing.
    run, key = sch.split(key, [None, DEPTH])
    annotate(sch, run, {"block_keys": DEPTH})
    sch.reorder(run, column, key)
    if size >= 4:
        key_tile, key_in = sch.split(key, [None, size])
        column_tile, column_in = sch.split(column, [None, size])
        sch.reorder(column_tile, key_tile, column_in, key_in)
        annotate(sch, column_tile, {"transposition": size, "query_axis": 1, "key_rows": 1})
        for loop in (column_in, key_in):
            annotate(sch, loop, {"tile": 1})
    column_tile, step, piece, column, key = sch.get_loops(VP)[-5:]
    vector, lane = sch.split(key, [None, w.lanes])
    sch.reorder(step, column_tile, column, vector, piece, lane)
    annotate(sch, step, {"block_keys": DEPTH})
    for loop in (vector, piece):
        sch.unroll(loop)
    sch.vectorize(lane)


def _queries(sch: Schedule, c: Candidate, w: Widths) -> None:
    """Transposed, then split into pieces; bfloat16 queries by pairs of columns."""
    valid_strips(sch, c, {"QB": -4, "QT": -3})
    pair, piece, column = sch.get_loops(sch.get_sblock("QB"))[-3:]
    if not present(sch, ("QT",)):
        pair_tile, pair_in = sch.split(pair, [None, TILE_ROWS])
        row_tile, row_in = sch.split(column, [None, TILE_ROWS])
        sch.reorder(pair_tile, row_tile, piece, pair_in, row_in)
        annotate(sch, pair_tile, {"pairs_of_columns": w.head_dim})
        return
    vector, lane = sch.split(column, [None, w.lanes])
    sch.reorder(vector, piece, lane)
    sch.unroll(piece)
    sch.vectorize(lane)
