"""Schedules of the variants whose queries lie along the lanes: row-block, blocks-and-merge, streaming."""

from __future__ import annotations

from typing import Any

from tvm import tirx
from tvm.s_tir import Schedule

from tvm_attention.schedules.candidate import Candidate
from tvm_attention.schedules.register_tile import (
    annotate,
    register_tile,
    register_tile_under,
    vector_reduction,
    vectorise_last,
)
from tvm_attention.schedules.repair import REPAIR, schedule_repair
from tvm_attention.schedules.stages import place, present

# Stages at the end of a row, as they hang from the result.
_ENDS = ("LSE", "N")
PACK_KEYS = 64  # keys copied by a task


def _task(sch: Schedule, query_block: int) -> Any:
    """One task a (batch, head, query block); lowering hands the tasks to the threads."""
    b, _, i, _ = sch.get_loops(sch.get_sblock("O"))
    block, row = sch.split(i, [None, query_block])
    annotate(sch, b, {"task": 3})
    annotate(sch, block, {"query_block": query_block})
    annotate(sch, row, {"valid_rows": 1})
    return block


def _scores(sch: Schedule, c: Candidate, lanes: int, keys: str) -> None:
    """Register tile of Q K^T; ``keys`` names the annotation that shortens its key loop."""
    tile = sch.get_loops(sch.get_sblock("SC"))[-3]
    annotate(sch, tile, {keys: c["score_rows"]})
    _, strip = register_tile_under(sch, "ST", "SC", c["score_rows"], c["score_vectors"], lanes)
    annotate(sch, strip, {"valid_rows": c["score_vectors"] * lanes})


def _softmax(sch: Schedule, c: Candidate, lanes: int, keys: str) -> None:
    """Row maximum and sum (vertical: queries along the lanes) and the weights."""
    for name in present(sch, ("M", "L")):
        vector_reduction(sch, name, c["score_vectors"], lanes, {keys: 1})
    annotate(sch, sch.get_loops(sch.get_sblock("P"))[-2], {keys: 1})
    vectorise_last(sch, sch.get_sblock("P"), lanes, unroll=True)
    vectorise_last(sch, sch.get_sblock("QT"), lanes)


def _ends(sch: Schedule, lanes: int) -> None:
    for name in present(sch, _ENDS):
        vectorise_last(sch, sch.get_sblock(name), lanes)


def _packed(sch: Schedule, lanes: int) -> None:
    """Copies of keys and values: tasks of their own, before all others."""
    for name in present(sch, ("KP", "VP")):
        block = sch.get_sblock(name)
        if name == "KP":
            b, head, key, column = sch.get_loops(block)
        else:
            b, head, strip, key, column = sch.get_loops(block)
            sch.reorder(b, head, key, strip, column)
        run, key_in = sch.split(key, [None, PACK_KEYS])
        annotate(sch, key_in, {"valid_keys": 1})
        annotate(sch, b, {"task": 3})
        annotate(sch, run, {"pack_keys": PACK_KEYS})
        width = min(lanes, int(sch.get(column).extent))
        while int(sch.get(column).extent) % width:
            width //= 2
        vectorise_last(sch, block, width)


def schedule_row_block(func: tirx.PrimFunc, c: Candidate, lanes: int, out_lanes: int) -> Schedule:
    """One task holds all scores of its query block."""
    sch = Schedule(func, enable_check=False)
    task = _task(sch, c["query_block"])
    place(sch, (*_ENDS, *REPAIR, "OT", "L", "P", "M", "SC", "ST", "QT"), task)
    _scores(sch, c, lanes, "valid_keys")
    value_lanes = lanes if c["queries_along_lanes"] else out_lanes
    rows, strip = register_tile(
        sch, "OT", c["value_rows"], c["value_vectors"], value_lanes, {"valid_keys": 1},
        bool(c["value_columns_outer"]),
    )  # fmt: skip
    if c["queries_along_lanes"]:
        annotate(sch, strip, {"valid_rows": c["value_vectors"] * lanes})
    else:
        annotate(sch, rows, {"valid_rows": c["value_rows"]})
    schedule_repair(sch, value_lanes, {"valid_keys": 1})
    _softmax(sch, c, lanes, "valid_keys")
    _ends(sch, lanes)
    _packed(sch, lanes)
    vectorise_last(sch, sch.get_sblock("O"), out_lanes)
    return sch


def schedule_weights(func: tirx.PrimFunc, c: Candidate, lanes: int) -> Schedule:
    """The softmax rows of a query block, written row by row."""
    sch = Schedule(func, enable_check=False)
    task = _task(sch, c["query_block"])
    place(sch, (*_ENDS, "L", "P", "M", "SC", "ST", "QT"), task)
    _scores(sch, c, lanes, "valid_keys")
    _softmax(sch, c, lanes, "valid_keys")
    _ends(sch, lanes)
    _packed(sch, lanes)
    return sch


def _key_blocks(sch: Schedule, c: Candidate, lanes: int, task: Any, key_block: Any) -> None:
    """Everything inside one block of keys."""
    annotate(sch, key_block, {"key_block": c["key_block"]})
    place(sch, (*REPAIR, "OT", "L", "P", "M", "SC", "ST"), key_block)
    sch.compute_at(sch.get_sblock("QT"), task, preserve_unit_loops=True)
    _scores(sch, c, lanes, "block_keys")
    _, strip = register_tile(
        sch, "OT", c["value_rows"], c["value_vectors"], lanes, {"block_keys": 1},
        bool(c["value_columns_outer"]),
    )  # fmt: skip
    annotate(sch, strip, {"valid_rows": c["value_vectors"] * lanes})
    schedule_repair(sch, lanes, {"block_keys": 1})
    _softmax(sch, c, lanes, "block_keys")
    _ends(sch, lanes)
    _packed(sch, lanes)


def schedule_blocks_and_merge(
    func: tirx.PrimFunc, c: Candidate, lanes: int, out_lanes: int
) -> Schedule:
    """Key blocks keep their own (values, sum, maximum) in PART; one merge ends the task."""
    sch = Schedule(func, enable_check=False)
    task = _task(sch, c["query_block"])
    place(sch, (*_ENDS, "OS", "LS", "W", "MM", "PART"), task)
    _key_blocks(sch, c, lanes, task, sch.get_loops(sch.get_sblock("PART"))[-3])
    vectorise_last(sch, sch.get_sblock("PART"), lanes, unroll=True)
    for name in ("MM", "LS", "OS"):
        vector_reduction(sch, name, 1, lanes, {"key_blocks": c["key_block"]})
    annotate(sch, sch.get_loops(sch.get_sblock("W"))[-2], {"key_blocks": c["key_block"]})
    vectorise_last(sch, sch.get_sblock("W"), lanes)
    vectorise_last(sch, sch.get_sblock("O"), out_lanes)
    return sch


def schedule_streaming(func: tirx.PrimFunc, c: Candidate, lanes: int, out_lanes: int) -> Schedule:
    """Key blocks are folded into a running (maximum, sum, values): online softmax."""
    sch = Schedule(func, enable_check=False)
    task = _task(sch, c["query_block"])
    place(sch, (*_ENDS, "R"), task)
    merged = sch.get_sblock("R")
    column, row, key_block = sch.get_loops(merged)[-3:]
    sch.reorder(key_block, column, row)
    _, lane = sch.split(row, [None, lanes])
    sch.vectorize(lane)
    _key_blocks(sch, c, lanes, task, key_block)
    sch.decompose_reduction(merged, key_block)
    vectorise_last(sch, sch.get_sblock("O"), out_lanes)
    return sch
