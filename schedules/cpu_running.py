"""Schedule of running attention: one accumulator of values, updated as the P V register tile ends."""

from __future__ import annotations

from typing import Any

from tvm import tirx
from tvm.s_tir import Schedule

from tvm_attention.schedules.candidate import Candidate
from tvm_attention.schedules.cpu_task import ENDS, Widths, edges, packed, query_task, scores
from tvm_attention.schedules.register_tile import annotate, vectorise_last
from tvm_attention.schedules.stages import place, present

# The loop over strips of the stages that follow the last block of keys, from the innermost.
LAST_STRIPS = {"EX": -5, **dict.fromkeys(ENDS, -2)}


def schedule_running(func: tirx.PrimFunc, c: Candidate, w: Widths) -> Schedule:
    """A task is ``query_strips`` strips of queries; each block of keys serves all of them in turn."""
    sch = Schedule(func, enable_check=False)
    task = query_task(sch, c["query_block"], c["query_strips"])
    place(sch, (*ENDS, "RX", "EX", "R"), task)
    strip = _accumulators(sch, c, w.lanes)
    place(sch, ("L", "P", "A", "D", "RM", "M", "SC", "MT", "ST"), strip)
    place(sch, ("QT",), task)
    valid_strips(sch, c, {"QT": -3})
    running_maximum(sch, w.lanes, *scores(sch, c, w.lanes, "block_keys"), unrolled=True)
    _weights_and_sum(sch, w.lanes)
    for name in ("A", "D", "RM"):
        vectorise_last(sch, sch.get_sblock(name), w.lanes)
    valid_strips(sch, c, LAST_STRIPS)
    non_finite(sch, c, w.lanes)
    edges(sch, w)
    packed(sch, w.lanes)
    return sch


def valid_strips(sch: Schedule, c: Candidate, loops: dict[str, int]) -> None:
    """Stages run over the strips that have queries: the others' sums are whatever memory held, and dividing
    by it costs more than a short row."""
    for name in present(sch, tuple(loops)):
        annotate(
            sch, sch.get_loops(sch.get_sblock(name))[loops[name]], {"query_strip": c["query_block"]}
        )


def _accumulators(sch: Schedule, c: Candidate, lanes: int) -> Any:
    """R, whose update takes a tile of P V out of the registers. Returns the loop over query strips."""
    R, OT = sch.get_sblock("R"), sch.get_sblock("OT")
    query_strip, row, column, block = sch.get_loops(R)[-4:]
    tile, row_in = sch.split(row, [None, c["value_rows"]])
    strip, vector, lane = sch.split(column, [None, c["value_vectors"], lanes])
    outer = (strip, tile) if c["value_columns_outer"] else (tile, strip)
    sch.reorder(block, query_strip, *outer, row_in, vector, lane)
    annotate(sch, block, {"key_block": c["key_block"]})
    annotate(sch, query_strip, {"query_strip": c["query_block"]})
    sch.set_scope(OT, 0, "local")
    sch.compute_at(OT, outer[1], preserve_unit_loops=True)
    tile_row, tile_column, key = sch.get_loops(OT)[-3:]
    tile_vector, tile_lane = sch.split(tile_column, [None, lanes])
    sch.reorder(key, tile_row, tile_vector, tile_lane)
    annotate(sch, key, {"block_keys": 1})
    annotate(sch, tile, {"value_tile": 1})
    annotate(sch, strip, {"valid_rows": c["value_vectors"] * lanes})
    for loop in (tile_row, tile_vector, row_in, vector):
        sch.unroll(loop)
    for loop in (tile_vector, vector):
        annotate(sch, loop, {"query_vectors": 1})
    for loop in (tile_lane, lane):
        sch.vectorize(loop)
    sch.decompose_reduction(OT, key)
    clear = sch.get_loops(sch.decompose_reduction(R, block))[-6]  # the outermost of its own: strips
    annotate(sch, clear, {"unless_key_blocks": c["key_block"]})
    return query_strip


def running_maximum(sch: Schedule, lanes: int, tile: Any, strip: Any, unrolled: bool) -> None:
    """The maximum of a score tile is taken as the tile is stored: ``unrolled``, while it is in registers."""
    M = sch.get_sblock("M")
    sch.reverse_compute_at(M, strip, preserve_unit_loops=True)
    column, _, row = sch.get_loops(M)[-3:]
    vector, lane = sch.split(column, [None, lanes])
    sch.reorder(vector, row, lane)
    annotate(sch, vector, {"query_vectors": 1})
    for loop in (vector, row) if unrolled else (vector,):
        sch.unroll(loop)
    sch.vectorize(lane)
    init = sch.decompose_reduction(M, tile)
    vectorise_last(sch, init, lanes)


def _weights_and_sum(sch: Schedule, lanes: int) -> None:
    """The row sum is taken as the weights are stored."""
    P, L = sch.get_sblock("P"), sch.get_sblock("L")
    key = sch.get_loops(P)[-2]
    annotate(sch, key, {"block_keys": 1})
    vectorise_last(sch, P, lanes, unroll=True)
    annotate(sch, sch.get_loops(P)[-2], {"query_vectors": 1})
    sch.reverse_compute_at(L, key, preserve_unit_loops=True)
    vector, lane = sch.split(sch.get_loops(L)[-2], [None, lanes])
    sch.reorder(sch.get_loops(L)[-1], vector, lane)
    annotate(sch, vector, {"query_vectors": 1})
    sch.unroll(vector)
    sch.vectorize(lane)
    init = sch.decompose_reduction(L, key)
    vectorise_last(sch, init, lanes, unroll=True)


def non_finite(sch: Schedule, c: Candidate, lanes: int) -> None:
    """NaN and Inf of values are added where they are seen, block by block, if a block has any."""
    if not present(sch, ("EX",)):
        return
    block = sch.get_sblock("EX")
    column, row, over, key = sch.get_loops(block)[-4:]
    vector, lane = sch.split(row, [None, lanes])
    sch.reorder(over, key, column, vector, lane)
    annotate(sch, over, {"key_block": c["key_block"]})
    annotate(sch, key, {"if_above_zero": 1, "block_keys": 1})
    sch.vectorize(lane)
    sch.decompose_reduction(block, over)
