"""Schedule of decoding on a matrix unit: the products are its calls, the rest is vectors."""

from __future__ import annotations

from typing import Any

from tvm import tirx
from tvm.s_tir import Schedule

from tvm_attention.compute import SplitKVTiles
from tvm_attention.compute.digits import BYTES
from tvm_attention.compute.matrix_decode import KEYS
from tvm_attention.schedules.candidate import Candidate
from tvm_attention.schedules.cpu_decode import (
    KEY_LOOPS,
    VALUE_LOOPS,
    merge,
    output_tile,
)
from tvm_attention.schedules.cpu_digits import queries_digits
from tvm_attention.schedules.register_tile import annotate, vectorise_last
from tvm_attention.schedules.repair import REPAIR, schedule_repair
from tvm_attention.schedules.stages import place, present


def schedule_matrix_decode(func: tirx.PrimFunc, c: Candidate, tiles: SplitKVTiles) -> Schedule:
    """One task a (batch, key-value head, split), then the merge of the splits."""
    sch = Schedule(func, enable_check=False)
    b, _, task, _, part = sch.get_loops(sch.get_sblock("PART"))
    annotate(sch, b, {"task": 3})
    columns = tiles.rows * (BYTES.count if tiles.integer else 1)
    annotate(sch, task, {"split": KEYS, "split_chunk": KEYS})
    annotate(sch, task, {"decode_task": tiles.rows, "decode_columns": columns})
    vector, lane = sch.split(part, [None, tiles.value_lanes])
    sch.unroll(vector)
    sch.vectorize(lane)
    if tiles.integer:
        output_tile(sch, c, tiles, task)
    else:
        _values(sch, c, tiles, task)
    _scores(sch, c, tiles, task)
    _softmax(sch, tiles.value_lanes)
    merge(sch, tiles)
    return sch


def _values(sch: Schedule, c: Candidate, tiles: SplitKVTiles, task: Any) -> None:
    place(sch, (*REPAIR, "OT"), task)
    schedule_repair(sch, tiles.value_lanes, {"split_vectors": 1}, axes=2)
    row, _, step, _ = sch.get_loops(sch.get_sblock("OT"))[-4:]
    annotate(sch, row, {"decode_values": c["prefetch"]})
    annotate(sch, step, {"split_vectors": 1})
    sch.compute_at(sch.get_sblock("L"), task, preserve_unit_loops=True)
    place(sch, ("PW", "LL", "P", "M", "ML", "SM", "S"), task)


def _softmax(sch: Schedule, lanes: int) -> None:
    """The scores' maximum is taken as they are computed, the weights' sum as they are;
    the lanes of both are added by shuffles."""
    for name in ("M", "L"):
        annotate(sch, sch.get_loops(sch.get_sblock(name))[-1], {"lanes_added": 1})
    for name in present(sch, ("SM", "P", "PW")):
        block = sch.get_sblock(name)
        row, step, _ = sch.get_loops(block)[-3:]
        if name == "PW":  # by steps already
            row, step = step, row
        else:
            sch.reorder(step, row)
        vectorise_last(sch, block, lanes)
        annotate(sch, step, KEY_LOOPS if name == "SM" else VALUE_LOOPS)
    for name, notes in (("ML", KEY_LOOPS), ("LL", VALUE_LOOPS)):
        block = sch.get_sblock(name)
        row, key, step = sch.get_loops(block)[-3:]
        vector, lane = sch.split(key, [None, lanes])
        sch.reorder(step, row, vector, lane)
        sch.vectorize(lane)
        annotate(sch, step, notes)
        sch.decompose_reduction(block, step)


def _scores(sch: Schedule, c: Candidate, tiles: SplitKVTiles, task: Any) -> None:
    row, step, key = sch.get_loops(sch.get_sblock("S"))[-3:]
    sch.reorder(step, row, key)
    annotate(sch, step, KEY_LOOPS)
    vectorise_last(sch, sch.get_sblock("S"), tiles.value_lanes)
    place(sch, ("DF", "DOT"), step)
    if tiles.integer:
        vectorise_last(sch, sch.get_sblock("DF"), tiles.value_lanes)
    column, *_ = sch.get_loops(sch.get_sblock("DOT"))[-4:]
    annotate(sch, column, {"decode_scores": c["prefetch"]})
    place(sch, ("QB",), task)
    word, *_ = sch.get_loops(sch.get_sblock("QB"))[-3:]
    annotate(sch, word, {"decode_queries": 1})
    if tiles.integer:
        queries_digits(sch, tiles, task)
    sch.compute_at(sch.get_sblock("QS"), task, preserve_unit_loops=True)
    vectorise_last(sch, sch.get_sblock("QS"), tiles.score_lanes)
