"""Schedules of the variants whose queries lie along the lanes: row-block, blocks-and-merge, streaming."""

from __future__ import annotations

from typing import Any

from tvm import tirx
from tvm.s_tir import Schedule

from tvm_attention.schedules.candidate import Candidate
from tvm_attention.schedules.register_tile import (
    annotate,
    register_tile,
    vector_reduction,
    vectorise_last,
)


def _task(sch: Schedule, query_block: int) -> Any:
    """One task a (batch, head, query block); lowering hands the tasks to the threads."""
    b, _, i, _ = sch.get_loops(sch.get_sblock("O"))
    block, _ = sch.split(i, [None, query_block])
    annotate(sch, b, {"task": 3})
    annotate(sch, block, {"query_block": query_block})
    return block


def _scores(sch: Schedule, c: Candidate, lanes: int, keys: str) -> None:
    """Register tile of Q K^T; ``keys`` names the annotation that shortens its key loop."""
    tile = sch.get_loops(sch.get_sblock("ST"))[-4]
    annotate(sch, tile, {keys: c["score_rows"]})
    _, strip = register_tile(sch, "ST", c["score_rows"], c["score_vectors"], lanes)
    annotate(sch, strip, {"valid_rows": c["score_vectors"] * lanes})


def _softmax(sch: Schedule, c: Candidate, lanes: int, keys: str) -> None:
    """Row maximum and sum (vertical: queries along the lanes) and the weights."""
    for name in ("M", "L"):
        vector_reduction(sch, name, c["score_vectors"], lanes, {keys: 1})
    annotate(sch, sch.get_loops(sch.get_sblock("P"))[-2], {keys: 1})
    vectorise_last(sch, sch.get_sblock("P"), lanes, unroll=True)
    vectorise_last(sch, sch.get_sblock("QT"), lanes)


def schedule_row_block(func: tirx.PrimFunc, c: Candidate, lanes: int, out_lanes: int) -> Schedule:
    """One task holds all scores of its query block."""
    sch = Schedule(func, enable_check=False)
    task = _task(sch, c["query_block"])
    for name in ("OT", "L", "P", "M", "ST", "QT"):
        sch.compute_at(sch.get_sblock(name), task, preserve_unit_loops=True)
    _scores(sch, c, lanes, "valid_keys")
    annotate(sch, sch.get_loops(sch.get_sblock("OT"))[-1], {"valid_keys": 1})
    value_lanes = lanes if c["queries_along_lanes"] else out_lanes
    rows, strip = register_tile(
        sch, "OT", c["value_rows"], c["value_vectors"], value_lanes, bool(c["value_columns_outer"])
    )
    if c["queries_along_lanes"]:
        annotate(sch, strip, {"valid_rows": c["value_vectors"] * lanes})
    else:
        annotate(sch, rows, {"valid_rows": c["value_rows"]})
    _softmax(sch, c, lanes, "valid_keys")
    vectorise_last(sch, sch.get_sblock("O"), out_lanes)
    return sch


def _key_blocks(sch: Schedule, c: Candidate, lanes: int, task: Any, key_block: Any) -> None:
    """Everything inside one block of keys."""
    annotate(sch, key_block, {"key_block": c["key_block"]})
    for name in ("OT", "L", "P", "M", "ST"):
        sch.compute_at(sch.get_sblock(name), key_block, preserve_unit_loops=True)
    sch.compute_at(sch.get_sblock("QT"), task, preserve_unit_loops=True)
    _scores(sch, c, lanes, "block_keys")
    annotate(sch, sch.get_loops(sch.get_sblock("OT"))[-1], {"block_keys": 1})
    _, strip = register_tile(
        sch, "OT", c["value_rows"], c["value_vectors"], lanes, bool(c["value_columns_outer"])
    )
    annotate(sch, strip, {"valid_rows": c["value_vectors"] * lanes})
    _softmax(sch, c, lanes, "block_keys")


def _pack_value(sch: Schedule, c: Candidate) -> None:
    if not c["pack_value"]:
        return
    b, head, tile, block, key, column = sch.get_loops(sch.get_sblock("VP"))
    sch.reorder(b, head, block, key, tile, column)
    annotate(sch, b, {"task": 3})
    sch.vectorize(column)


def schedule_blocks_and_merge(
    func: tirx.PrimFunc, c: Candidate, lanes: int, out_lanes: int
) -> Schedule:
    """Key blocks keep their own (values, sum, maximum) in PART; one merge ends the task."""
    sch = Schedule(func, enable_check=False)
    task = _task(sch, c["query_block"])
    for name in ("OS", "W", "MM", "PART"):
        sch.compute_at(sch.get_sblock(name), task, preserve_unit_loops=True)
    _key_blocks(sch, c, lanes, task, sch.get_loops(sch.get_sblock("PART"))[-3])
    vectorise_last(sch, sch.get_sblock("PART"), lanes, unroll=True)
    for name in ("MM", "OS"):
        vector_reduction(sch, name, 1, lanes, {"key_blocks": c["key_block"]})
    annotate(sch, sch.get_loops(sch.get_sblock("W"))[-2], {"key_blocks": c["key_block"]})
    vectorise_last(sch, sch.get_sblock("W"), lanes)
    _pack_value(sch, c)
    vectorise_last(sch, sch.get_sblock("O"), out_lanes)
    return sch


def schedule_streaming(func: tirx.PrimFunc, c: Candidate, lanes: int, out_lanes: int) -> Schedule:
    """Key blocks are folded into a running (maximum, sum, values): online softmax."""
    sch = Schedule(func, enable_check=False)
    task = _task(sch, c["query_block"])
    merged = sch.get_sblock("R")
    sch.compute_at(merged, task, preserve_unit_loops=True)
    column, row, key_block = sch.get_loops(merged)[-3:]
    sch.reorder(key_block, column, row)
    _, lane = sch.split(row, [None, lanes])
    sch.vectorize(lane)
    _key_blocks(sch, c, lanes, task, key_block)
    sch.decompose_reduction(merged, key_block)
    _pack_value(sch, c)
    vectorise_last(sch, sch.get_sblock("O"), out_lanes)
    return sch
