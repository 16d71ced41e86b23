"""Which kernels might serve a workload better than the one that is picked."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tvm_attention.database import TuningRecord, shipped_logs
from tvm_attention.database.ladder import dim_ratio, feature_distance, length_distance
from tvm_attention.digest import EXPRESSION_DIGEST
from tvm_attention.runtime import select
from tvm_attention.schedules import Candidate, schedules_for
from tvm_attention.target import HardwareTarget, cut_down, features_of, levels_below
from tvm_attention.workload import AttentionWorkload

MOST = 6  # rivals that are timed
CLASSES = ("short", "medium", "long")


@dataclass(frozen=True, slots=True)
class Rival:
    """A candidate, the target it is built for, and the record or schedule that it is from."""

    candidate: Candidate
    target: HardwareTarget
    origin: str

    def to_dict(self) -> dict[str, Any]:
        """As JSON."""
        return {
            "candidate": str(self.candidate),
            "target": self.target.name,
            "origin": self.origin,
        }


def picked(workload: AttentionWorkload, target: HardwareTarget) -> Rival:
    """What the loader takes."""
    source = select(workload, target)
    built_for = target if source.level is None else cut_down(target, source.level)
    origin = source.rung if source.record is None else f"{source.rung}: {source.record}"
    return Rival(source.candidate, built_for, origin)


def rivals(workload: AttentionWorkload, target: HardwareTarget, taken: Rival) -> list[Rival]:
    """The default schedule of each variant that has one, then the nearest records' candidates, none twice
    and none that the design space refuses; MOST in all."""
    schedules = schedules_for(target)
    machine = schedules.machine_parameters(target)
    space = schedules.design_space(workload, machine)
    starts = [c for c in schedules.starting_points(workload, machine) if space.refusal(c) is None]
    firsts = {c.variant: c for c in reversed(starts)}
    defaults = [Rival(c, target, "default schedule") for c in starts if firsts[c.variant] == c]
    records = sorted(_usable_records(target), key=lambda r: _distance(r, workload, target))
    tuned = [
        Rival(c, target, str(record))
        for record in records
        if space.refusal(c := Candidate.of(record.variant, record.decisions)) is None
    ]
    return _distinct(defaults + tuned, {taken.candidate})[:MOST]


def _distinct(found: list[Rival], known: set[Candidate]) -> list[Rival]:
    first = {r.candidate: r for r in reversed(found) if r.candidate not in known}
    return [r for r in found if first.get(r.candidate) is r]


def _usable_records(target: HardwareTarget) -> list[TuningRecord]:
    """Shipped records of levels that the target has, for the expressions as they are."""
    levels = {target.isa, *levels_below(target)}
    return [
        record
        for log in shipped_logs()
        for record in log.records
        if record.expression == EXPRESSION_DIGEST
        and record.hardware["isa"] in levels
        and features_of(record.hardware["isa"]) <= target.features
    ]


def _distance(
    record: TuningRecord, workload: AttentionWorkload, target: HardwareTarget
) -> tuple[float, ...]:
    """Own class and its neighbours first, then dtype, head dimensions, options and lengths; of equal
    ones, those of the most alike machine."""
    tuned = record.workload
    return (
        _class_distance(tuned.length_class, workload.length_class)
        + 2.0 * (tuned.dtype != workload.dtype)
        + dim_ratio(tuned, workload)
        - 1.0
        + 0.5 * feature_distance(tuned, workload)
        + 0.1 * length_distance(tuned, workload),
        record.target != target.name,
        record.hardware["isa"] != target.isa,
        record.ratio,
    )


def _class_distance(one: str, other: str) -> float:
    if one == other:
        return 0.0
    if one in CLASSES and other in CLASSES:
        return abs(CLASSES.index(one) - CLASSES.index(other))
    decodes = one.startswith("decode") and other.startswith("decode")
    return 1.0 if decodes else 4.0
