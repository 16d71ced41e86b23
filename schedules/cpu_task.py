"""What the schedules of prefill share: a task and its edges, the score tile, copies of keys and values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tvm.s_tir import Schedule

from tvm_attention.schedules.candidate import Candidate
from tvm_attention.schedules.register_tile import (
    annotate,
    register_tile_under,
    transposition,
    vectorise_last,
)
from tvm_attention.schedules.stages import present

# Stages at the end of a row, as they hang from the result.
ENDS = ("LSE", "N")
PACK_KEYS = 64  # keys copied by a task


@dataclass(frozen=True)
class Widths:
    """Lanes of a vector: the machine's, and the most that divide the head and the value dimension; those."""

    lanes: int
    head: int
    value: int
    head_dim: int
    value_dim: int


def query_task(sch: Schedule, query_block: int, strips: int = 1) -> Any:
    """One task a (batch, head, ``strips`` blocks of queries); lowering hands the tasks to the threads, and
    parts of them where the threads are many."""
    b, _, i, _ = sch.get_loops(sch.get_sblock("O"))
    block, _ = sch.split(i, [None, strips * query_block])
    annotate(sch, b, {"task": 3})
    annotate(sch, block, {"query_block": strips * query_block})
    if strips > 1:
        annotate(sch, block, {"task_strips": strips})
    return block


def scores(sch: Schedule, c: Candidate, lanes: int, keys: str) -> tuple[Any, Any]:
    """Register tile of Q K^T; ``keys`` names the annotation that shortens its key loop. Returns the
    loops over tiles of keys and over strips of queries."""
    tile = sch.get_loops(sch.get_sblock("SC"))[-3]
    annotate(sch, tile, {keys: c["score_rows"]})
    _, strip = register_tile_under(sch, "ST", "SC", c["score_rows"], c["score_vectors"], lanes)
    annotate(sch, strip, {"valid_rows": c["score_vectors"] * lanes})
    for name in present(sch, ("MT",)):
        sch.set_scope(sch.get_sblock(name), 0, "local")
        sch.compute_at(sch.get_sblock(name), strip, preserve_unit_loops=True)
        size = next((n for n in (16, 8, 4) if n <= lanes and c["score_rows"] % n == 0), 1)
        transposition(sch, name, size, lanes, query_axis=1)
    return tile, strip


def edges(sch: Schedule, w: Widths, queries_along_lanes: bool = True) -> None:
    """The first and the last stages of a task: Q transposed and scaled, the result transposed back."""
    for name in present(sch, ENDS):
        vectorise_last(sch, sch.get_sblock(name), w.lanes)
    for name in present(sch, ("QT",)):
        transposition(sch, name, w.head, w.lanes, query_axis=1)
    # The log-sum-exp is stored beside the result, row by row.
    if queries_along_lanes and w.value >= 4 and not present(sch, ("LSE",)):
        transposition(sch, "O", w.value, w.value, query_axis=0)
        return
    annotate(sch, sch.get_loops(sch.get_sblock("O"))[-2], {"valid_rows": 1})
    vectorise_last(sch, sch.get_sblock("O"), w.value)


def packed(sch: Schedule, lanes: int) -> None:
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
    if present(sch, ("VB",)):
        look_for_non_finite(sch)


def look_for_non_finite(sch: Schedule) -> None:
    """NaN and Inf among the values, block by block."""
    batch, _, block, _ = sch.get_loops(sch.get_sblock("VB"))
    annotate(sch, batch, {"task": 3})
    lanes = sch.get_sblock("VL")
    sch.compute_at(lanes, block, preserve_unit_loops=True)
    lane, key, column = sch.get_loops(lanes)[-3:]
    sch.reorder(key, column, lane)
    sch.vectorize(lane)
    sch.decompose_reduction(lanes, key)
