"""Schedule of split-KV decoding: the head dimension along the lanes, keys and values read once."""

from __future__ import annotations

from typing import Any

from tvm import tirx
from tvm.s_tir import Schedule

from tvm_attention.compute import SplitKVTiles
from tvm_attention.schedules.candidate import Candidate
from tvm_attention.schedules.register_tile import annotate, vectorise_last
from tvm_attention.schedules.repair import REPAIR, schedule_repair
from tvm_attention.schedules.stages import place


def schedule_split_kv(func: tirx.PrimFunc, c: Candidate, tiles: SplitKVTiles) -> Schedule:
    """One task a (batch, key-value head, split), then the merge of the splits."""
    sch = Schedule(func, enable_check=False)
    get = sch.get_sblock
    b, _, task, _, part = sch.get_loops(get("PART"))
    annotate(sch, b, {"task": 3})
    annotate(sch, task, {"split": tiles.lanes, "split_chunk": tiles.lanes // tiles.streams})
    vector, lane = sch.split(part, [None, tiles.value_lanes])
    sch.unroll(vector)
    sch.vectorize(lane)
    _output_tile(sch, c, tiles, task)
    tree = [f"T{w}" for w in (2, 4, 8, 16) if w < tiles.score_lanes]
    _scores(sch, c, tiles, task, tree)
    for name in ("SM", "P"):
        sch.vectorize(sch.get_loops(get(name))[-1])
        annotate(sch, sch.get_loops(get(name))[-2], {"split_vectors": 1})
    for name in ("ML", "LL"):
        lane, key = sch.get_loops(get(name))[-2:]
        sch.reorder(key, lane)
        sch.vectorize(lane)
        annotate(sch, key, {"split_vectors": 1})
        sch.decompose_reduction(get(name), key)
    _merge(sch, tiles)
    return sch


def _output_tile(sch: Schedule, c: Candidate, tiles: SplitKVTiles, task: Any) -> None:
    """P V: rows x value_vectors accumulators over all keys of the split."""
    get, lanes = sch.get_sblock, tiles.value_lanes
    place(sch, (*REPAIR, "OT"), task)
    schedule_repair(sch, lanes, {"split_vectors": 1}, axes=2)
    row, column, jo, ji = sch.get_loops(get("OT"))[-4:]
    strip, vector, lane = sch.split(column, [None, c["value_vectors"], lanes])
    row_tile, row_in = sch.split(row, [None, c["value_rows"]])
    sch.reorder(row_tile, strip, jo, ji, row_in, vector, lane)
    annotate(sch, jo, {"split_vectors": 1})
    sch.compute_at(get("L"), task, preserve_unit_loops=True)
    for name in ("LL", "P", "M", "ML", "SM", "S"):
        sch.compute_at(get(name), task, preserve_unit_loops=True)
    accumulator = sch.cache_write(get("OT"), 0, "local")
    sch.reverse_compute_at(accumulator, strip, preserve_unit_loops=True)
    copy_row, copy_column = sch.get_loops(accumulator)[-2:]
    copy_vector, copy_lane = sch.split(copy_column, [None, lanes])
    for loop in (copy_row, copy_vector, row_in, vector):
        sch.unroll(loop)
    sch.vectorize(copy_lane)
    sch.vectorize(lane)
    sch.decompose_reduction(get("OT"), jo)


def _scores(sch: Schedule, c: Candidate, tiles: SplitKVTiles, task: Any, tree: list[str]) -> None:
    """Dot products of ``score_keys`` keys x rows at a time, their lanes added by halves."""
    get = sch.get_sblock
    row, jo, ji = sch.get_loops(get("S"))[-3:]
    sch.reorder(jo, row, ji)
    annotate(sch, jo, {"split_vectors": 1})
    for name in [*tree, "DOT"]:
        sch.compute_at(get(name), jo, preserve_unit_loops=True)
    sch.compute_at(get("QS"), task, preserve_unit_loops=True)
    vectorise_last(sch, get("QS"), tiles.score_lanes)
    block = get("DOT")
    key, row, lane, k = sch.get_loops(block)[-4:]
    key_tile, key_in = sch.split(key, [None, c["score_keys"]])
    sch.reorder(key_tile, k, key_in, row, lane)
    accumulator = sch.cache_write(block, 0, "local")
    sch.reverse_compute_at(accumulator, key_tile, preserve_unit_loops=True)
    *copy, copy_lane = sch.get_loops(accumulator)[-3:]
    for loop in (*copy, key_in, row):
        sch.unroll(loop)
    sch.vectorize(copy_lane)
    sch.vectorize(lane)
    sch.decompose_reduction(block, k)
    for name in tree:
        *_, row, lane = sch.get_loops(get(name))
        sch.unroll(row)
        sch.vectorize(lane)


def _merge(sch: Schedule, tiles: SplitKVTiles) -> None:
    get = sch.get_sblock
    b, _, row, _ = sch.get_loops(get("O"))
    annotate(sch, b, {"batch_rows": 1})
    annotate(sch, row, {"valid_rows": 1})
    vectorise_last(sch, get("O"), tiles.value_lanes)
    place(sch, ("LSE", "N", "OS", "LS", "W", "MM"), row)
    column, split = sch.get_loops(get("OS"))[-2:]
    strip, lane = sch.split(column, [None, tiles.value_lanes])
    sch.reorder(strip, split, lane)
    sch.vectorize(lane)
    sch.decompose_reduction(get("OS"), split)
