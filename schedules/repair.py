"""Schedule of the second look at a weighted sum that holds a NaN (tvm_attention.compute.repair)."""

from __future__ import annotations

from tvm.s_tir import Schedule

from tvm_attention.schedules.register_tile import annotate, vector_reduction
from tvm_attention.schedules.stages import present

# In the order in which they hang from their consumer.
REPAIR = ("OX", "FLAG", "FV", "FL")


def schedule_repair(sch: Schedule, lanes: int, keys: dict[str, int], axes: int = 1) -> None:
    """The stages are placed; ``keys`` shortens the outer of the ``axes`` loops over keys."""
    if not present(sch, REPAIR):
        return
    again = sch.get_sblock("OX")
    row, column, *over = sch.get_loops(again)[-2 - axes :]
    strip, lane = sch.split(column, [None, lanes])
    sch.reorder(row, strip, *over, lane)
    annotate(sch, row, {"if_nan": 1})
    annotate(sch, over[0], keys)
    sch.vectorize(lane)
    sch.decompose_reduction(again, over[0])
    vector_reduction(sch, "FL", 1, lanes, {})
    lane, strip = sch.get_loops(sch.get_sblock("FV"))[-2:]
    sch.reorder(strip, lane)
    sch.vectorize(lane)
    sch.decompose_reduction(sch.get_sblock("FV"), strip)
