"""Schedules of the variants whose queries lie along the lanes: row-block, blocks-and-merge, streaming."""

from __future__ import annotations

from typing import Any

from tvm import tirx
from tvm.s_tir import Schedule

from tvm_attention.schedules.candidate import Candidate
from tvm_attention.schedules.cpu_task import ENDS, Widths, edges, packed, query_task, scores
from tvm_attention.schedules.register_tile import (
    annotate,
    register_tile,
    transposition,
    vector_reduction,
    vectorise_last,
)
from tvm_attention.schedules.repair import REPAIR, schedule_repair
from tvm_attention.schedules.stages import place, present


def _softmax(sch: Schedule, c: Candidate, lanes: int, keys: str) -> None:
    """Row maximum and sum (vertical: queries along the lanes) and the weights."""
    for name in present(sch, ("M", "L")):
        vector_reduction(sch, name, c["score_vectors"], lanes, {keys: 1})
    annotate(sch, sch.get_loops(sch.get_sblock("P"))[-2], {keys: 1})
    vectorise_last(sch, sch.get_sblock("P"), lanes, unroll=True)


def schedule_row_block(func: tirx.PrimFunc, c: Candidate, w: Widths) -> Schedule:
    """One task holds all scores of its query block."""
    sch = Schedule(func, enable_check=False)
    task = query_task(sch, c["query_block"])
    place(sch, (*ENDS, "FX", *REPAIR, "OT", "L", "P", "M", "SC", "MT", "ST", "QT"), task)
    scores(sch, c, w.lanes, "valid_keys")
    value_lanes = w.lanes if c["queries_along_lanes"] else w.value
    rows, strip = register_tile(
        sch, "OT", c["value_rows"], c["value_vectors"], value_lanes, {"valid_keys": 1},
        bool(c["value_columns_outer"]),
    )  # fmt: skip
    if c["queries_along_lanes"]:
        annotate(sch, strip, {"valid_rows": c["value_vectors"] * w.lanes})
    else:
        annotate(sch, rows, {"valid_rows": c["value_rows"]})
    schedule_repair(sch, value_lanes, {"valid_keys": 1})
    for name in present(sch, ("FX",)):
        vectorise_last(sch, sch.get_sblock(name), value_lanes)
    _softmax(sch, c, w.lanes, "valid_keys")
    edges(sch, w, bool(c["queries_along_lanes"]))
    packed(sch, w.lanes)
    return sch


def schedule_weights(func: tirx.PrimFunc, c: Candidate, w: Widths) -> Schedule:
    """The softmax rows of a query block, written row by row."""
    sch = Schedule(func, enable_check=False)
    task = query_task(sch, c["query_block"])
    place(sch, (*ENDS, "L", "P", "M", "SC", "MT", "ST", "QT"), task)
    scores(sch, c, w.lanes, "valid_keys")
    _softmax(sch, c, w.lanes, "valid_keys")
    for name in present(sch, ENDS):
        vectorise_last(sch, sch.get_sblock(name), w.lanes)
    transposition(sch, "QT", w.head, w.lanes, query_axis=1)
    annotate(sch, sch.get_loops(sch.get_sblock("O"))[-2], {"valid_rows": 1})
    packed(sch, w.lanes)
    return sch


def _key_blocks(sch: Schedule, c: Candidate, w: Widths, task: Any, key_block: Any) -> None:
    """Everything inside one block of keys."""
    annotate(sch, key_block, {"key_block": c["key_block"]})
    place(sch, (*REPAIR, "OT", "L", "P", "M", "SC", "MT", "ST"), key_block)
    sch.compute_at(sch.get_sblock("QT"), task, preserve_unit_loops=True)
    scores(sch, c, w.lanes, "block_keys")
    _, strip = register_tile(
        sch, "OT", c["value_rows"], c["value_vectors"], w.lanes, {"block_keys": 1},
        bool(c["value_columns_outer"]),
    )  # fmt: skip
    annotate(sch, strip, {"valid_rows": c["value_vectors"] * w.lanes})
    schedule_repair(sch, w.lanes, {"block_keys": 1})
    _softmax(sch, c, w.lanes, "block_keys")
    edges(sch, w)
    packed(sch, w.lanes)


def schedule_blocks_and_merge(func: tirx.PrimFunc, c: Candidate, w: Widths) -> Schedule:
    """Key blocks keep their own (values, sum, maximum) in PART; one merge ends the task."""
    sch = Schedule(func, enable_check=False)
    task = query_task(sch, c["query_block"])
    place(sch, (*ENDS, "OS", "LS", "W", "MM", "PART"), task)
    _key_blocks(sch, c, w, task, sch.get_loops(sch.get_sblock("PART"))[-3])
    vectorise_last(sch, sch.get_sblock("PART"), w.lanes, unroll=True)
    for name in ("MM", "LS", "OS"):
        vector_reduction(sch, name, 1, w.lanes, {"key_blocks": c["key_block"]})
    annotate(sch, sch.get_loops(sch.get_sblock("W"))[-2], {"key_blocks": c["key_block"]})
    vectorise_last(sch, sch.get_sblock("W"), w.lanes)
    return sch


def schedule_streaming(func: tirx.PrimFunc, c: Candidate, w: Widths) -> Schedule:
    """Key blocks are folded into a running (maximum, sum, values): online softmax."""
    sch = Schedule(func, enable_check=False)
    task = query_task(sch, c["query_block"])
    place(sch, (*ENDS, "R"), task)
    merged = sch.get_sblock("R")
    column, row, key_block = sch.get_loops(merged)[-3:]
    sch.reorder(key_block, column, row)
    _, lane = sch.split(row, [None, w.lanes])
    sch.vectorize(lane)
    _key_blocks(sch, c, w, task, key_block)
    sch.decompose_reduction(merged, key_block)
    return sch
