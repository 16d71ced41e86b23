"""Schedule of split-KV decoding: the head dimension along the lanes, keys and values read once."""

from __future__ import annotations

from typing import Any

from tvm import tirx
from tvm.s_tir import Schedule

from tvm_attention.compute import SplitKVTiles
from tvm_attention.schedules.candidate import Candidate
from tvm_attention.schedules.cpu_digits import pairs_of_digits, single_digits
from tvm_attention.schedules.register_tile import annotate, vectorise_last
from tvm_attention.schedules.repair import REPAIR, schedule_repair
from tvm_attention.schedules.stages import place, present

# Loops over the key vectors of a split: those that read keys become one, and so do those that read values.
KEY_LOOPS = {"split_vectors": 1, "together": 1, "whole_first": 1}
VALUE_LOOPS = {"split_vectors": 1, "together": 2, "whole_first": 1}


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
    output_tile(sch, c, tiles, task)
    _scores(sch, c, tiles, task, _lane_sums(tiles))
    _softmax(sch, tiles)
    merge(sch, tiles)
    return sch


def _lane_sums(tiles: SplitKVTiles) -> list[str]:
    """The stages that add the lanes of products."""
    if tiles.integer == 2:
        return []
    if tiles.shuffled:
        return ["DS"]
    return [f"T{w}" for w in (2, 4, 8, 16) if w < tiles.score_lanes]


def output_tile(sch: Schedule, c: Candidate, tiles: SplitKVTiles, task: Any) -> None:
    """P V: value_rows x value_vectors accumulators over the keys of a vector, each row of V read whole."""
    get, lanes = sch.get_sblock, tiles.value_lanes
    place(sch, (*REPAIR, "OT"), task)
    schedule_repair(sch, lanes, {"split_vectors": 1}, axes=2)
    row, column, jo = sch.get_loops(get("OT"))[-3:]
    strip, vector, lane = sch.split(column, [None, c["value_vectors"], lanes])
    row_tile, row_in = sch.split(row, [None, c["value_rows"]])
    sch.reorder(jo, row_tile, strip, row_in, vector, lane)
    annotate(sch, jo, {**VALUE_LOOPS, **_ahead(c)})
    sch.set_scope(get("OI"), 0, "local")
    sch.compute_at(get("OI"), strip, preserve_unit_loops=True)
    tile_row, _, tile_column, ji = sch.get_loops(get("OI"))[-4:]
    tile_vector, tile_lane = sch.split(tile_column, [None, 2 * lanes if tiles.halves else lanes])
    if tiles.shuffled:
        # An address for each stream, which goes on by whole rows.
        ji, stream = sch.split(ji, [None, tiles.streams])
        sch.reorder(ji, stream, tile_row, tile_vector, tile_lane)
        sch.unroll(stream)
    else:
        sch.reorder(ji, tile_row, tile_vector, tile_lane)
    for loop in (row_in, vector, tile_row, tile_vector):
        sch.unroll(loop)
    sch.vectorize(lane)
    _sums(sch, get("OI"), ji, tile_lane, tiles)
    if tiles.halves:
        annotate(sch, ji, {"half_weights": 1})
    if tiles.shuffled:
        annotate(sch, ji, {"split_lanes": tiles.streams})
        annotate(sch, stream, {"split_lane": 1})
        annotate(sch, tile_row, {"if_split_lane": 1})
    sch.decompose_reduction(get("OT"), jo)
    sch.compute_at(get("L"), task, preserve_unit_loops=True)
    place(sch, ("PH", "LL", "P", "M", "ML", "SM", "S"), task)


def _softmax(sch: Schedule, tiles: SplitKVTiles) -> None:
    """The scores' maximum is taken as they are computed, the weights are computed as they are used."""
    get = sch.get_sblock
    if tiles.shuffled:
        for name in ("M", "L"):
            annotate(sch, sch.get_loops(get(name))[-1], {"lanes_added": 1})
    for name in present(sch, ("SM", "P", "PH")):
        row, key, lane = sch.get_loops(get(name))[-3:]
        sch.reorder(key, row, lane)
        sch.vectorize(lane)
        annotate(sch, key, KEY_LOOPS if name == "SM" else VALUE_LOOPS)
    for name, notes in (("ML", KEY_LOOPS), ("LL", VALUE_LOOPS)):
        row, lane, key = sch.get_loops(get(name))[-3:]
        sch.reorder(key, row, lane)
        sch.vectorize(lane)
        annotate(sch, key, notes)
        sch.decompose_reduction(get(name), key)


def _ahead(c: Candidate) -> dict[str, int]:
    """How many key vectors ahead keys and values are asked for, for lowering."""
    return {"prefetch": c["prefetch"]} if c["prefetch"] else {}


def _scores(sch: Schedule, c: Candidate, tiles: SplitKVTiles, task: Any, tree: list[str]) -> None:
    """Dot products of ``score_keys`` keys x rows at a time, their lanes added by halves."""
    get = sch.get_sblock
    row, jo, ji = sch.get_loops(get("S"))[-3:]
    sch.reorder(jo, row, ji)
    annotate(sch, jo, {**KEY_LOOPS, **_ahead(c)})
    if tiles.integer == 2:
        pair, key = sch.split(ji, [None, 2])
        sch.unroll(row)
        sch.unroll(pair)
        sch.vectorize(key)
    for name in [*tree, *present(sch, ("DF",)), "DOT"]:
        sch.compute_at(get(name), jo, preserve_unit_loops=True)
    if tiles.integer:
        (pairs_of_digits if tiles.integer == 2 else single_digits)(sch, c, tiles, task)
    else:
        _products(sch, c, tiles)
    sch.compute_at(get("QS"), task, preserve_unit_loops=True)
    vectorise_last(sch, get("QS"), tiles.score_lanes)
    if tiles.shuffled:
        vectorise_last(sch, get("S"), tiles.lanes)
        key, lane = sch.get_loops(get("DS"))[-2:]
        annotate(sch, key, {"keys_added": 1})
        annotate(sch, lane, {"lanes_added": 1})
        tree = []
    for name in [*tree, *(present(sch, ("DF",)) if tiles.integer == 1 else ())]:
        *_, row, lane = sch.get_loops(get(name))
        sch.unroll(row)
        sch.vectorize(lane)


def _products(sch: Schedule, c: Candidate, tiles: SplitKVTiles) -> None:
    """Lanes of float32 sums."""
    block = sch.get_sblock("DOT")
    half = [sch.get_loops(block)[-1]] if tiles.halves == 1 else []
    key, row, lane, k = sch.get_loops(block)[-4 - len(half) :][:4]
    key_tile, key_in = sch.split(key, [None, c["score_keys"]])
    sch.reorder(key_tile, k, key_in, row, *half, lane)
    accumulator = sch.cache_write(block, 0, "local")
    sch.reverse_compute_at(accumulator, key_tile, preserve_unit_loops=True)
    *copy, copy_lane = sch.get_loops(accumulator)[-3:]
    for loop in (*copy, key_in, row):
        sch.unroll(loop)
    sch.vectorize(copy_lane)
    _sums(sch, block, k, lane, tiles, *half)
    if tiles.shuffled:
        annotate(sch, key_tile, {"split_lanes": c["score_keys"]})
        annotate(sch, k, {"if_split_lane": 1})


def _sums(
    sch: Schedule, block: Any, k: Any, lane: Any, tiles: SplitKVTiles, half: Any = None
) -> None:
    """Sums of products along ``lane``, which are float16's by halves (tvm_attention.lowering.halves): those
    that ``half`` runs over, else those of the lanes."""
    if not tiles.halves:
        sch.vectorize(lane)
        sch.decompose_reduction(block, k)
        return
    if half is None:
        half, _ = sch.split(lane, [2, None])
    vectorise_last(sch, sch.decompose_reduction(block, k), tiles.lanes)
    annotate(sch, half, {"halves": 1})


def merge(sch: Schedule, tiles: SplitKVTiles) -> None:
    get = sch.get_sblock
    b, _, row, _ = sch.get_loops(get("OG"))
    annotate(sch, b, {"merge": 1})
    annotate(sch, row, {"group_rows": 1})
    vectorise_last(sch, get("OG"), tiles.value_lanes)
    place(sch, ("LSE", "N", "OS", "LS", "W", "MM"), row)
    column, split = sch.get_loops(get("OS"))[-2:]
    strip, lane = sch.split(column, [None, tiles.value_lanes])
    sch.reorder(strip, split, lane)
    sch.vectorize(lane)
    sch.decompose_reduction(get("OS"), split)
