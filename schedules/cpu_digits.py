"""Schedule of the scores of decoding int8 keys (tvm_attention.compute.digits)."""

from __future__ import annotations

from typing import Any

from tvm.s_tir import Schedule

from tvm_attention.compute import SplitKVTiles
from tvm_attention.compute.digit_pairs import DEPTH
from tvm_attention.schedules.candidate import Candidate
from tvm_attention.schedules.register_tile import annotate, vectorise_last
from tvm_attention.schedules.stages import place


def single_digits(sch: Schedule, c: Candidate, tiles: SplitKVTiles, task: Any) -> None:
    """Lanes of int32 sums, each of neighbours (tvm_attention.lowering.dots), and the queries' digits."""
    block = sch.get_sblock("DOT")
    key_of = sch.get_loops(sch.get_sblock("DF"))[-3]
    tile, floats = sch.split(key_of, [None, c["score_keys"]])
    sch.set_scope(block, 0, "local")
    sch.compute_at(block, tile, preserve_unit_loops=True)
    key, row, digit, lane, k, number = sch.get_loops(block)[-6:]
    sch.reorder(k, key, row, digit, lane, number)
    for loop in (floats, key, row, digit):
        sch.unroll(loop)
    vectorise_last(sch, sch.decompose_reduction(block, k), tiles.score_lanes)
    annotate(sch, lane, {"dot": 1})
    annotate(sch, k, {"dot_steps": 1})
    if tiles.shuffled:
        annotate(sch, tile, {"split_lanes": c["score_keys"]})
        annotate(sch, k, {"if_split_lane": 1})
    queries_digits(sch, tiles, task)


def pairs_of_digits(sch: Schedule, c: Candidate, tiles: SplitKVTiles, task: Any) -> None:
    """Two by two int32 sums, each of eight numbers of two digits and two keys."""
    block, floats = sch.get_sblock("DOT"), sch.get_sblock("DF")
    keys, pair, digit, key, k, number = sch.get_loops(block)[-6:]
    tile, keys_in = sch.split(keys, [None, c["score_keys"] // 2])
    sch.reorder(tile, k, keys_in, pair, digit, key, number)
    accumulator = sch.cache_write(block, 0, "local")
    sch.reverse_compute_at(accumulator, tile, preserve_unit_loops=True)
    first = sch.decompose_reduction(block, k)
    for stage in (accumulator, first, floats):
        *outer, digit_of, key_of = sch.get_loops(stage)[-4:]
        sch.vectorize(sch.fuse(digit_of, key_of))
        for loop in outer:
            sch.unroll(loop)
    for loop in (keys_in, pair):
        sch.unroll(loop)
    annotate(sch, digit, {"pairs": 1})
    annotate(sch, k, {"dot_steps": 1})
    place(sch, ("QW", "QP"), task)
    vectorise_last(sch, sch.get_sblock("QP"), DEPTH)
    queries_digits(sch, tiles, task)


def queries_digits(sch: Schedule, tiles: SplitKVTiles, task: Any) -> None:
    place(sch, ("QD", "QI", "QF", "QM", "QL"), task)
    largest = sch.get_sblock("QL")
    lane, over = sch.get_loops(largest)[-2:]
    sch.reorder(over, lane)
    sch.vectorize(lane)
    sch.decompose_reduction(largest, over)
    digit, _ = sch.get_loops(sch.get_sblock("QD"))[-2:]
    sch.unroll(digit)
    vectorise_last(sch, sch.get_sblock("QD"), tiles.score_lanes)
