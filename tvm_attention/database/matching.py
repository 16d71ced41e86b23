"""Which tuning record serves a workload on a machine, and why."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from tvm_attention.database.ladder import (
    DEFAULT_SCHEDULE,
    RUNGS,
    dim_ratio,
    dims,
    feature_distance,
    length_distance,
    refusal,
    rung_of,
)
from tvm_attention.database.logs import TuningLog, available_logs
from tvm_attention.database.record import TuningRecord
from tvm_attention.target import HardwareTarget, levels_below
from tvm_attention.workload import AttentionWorkload

_NAMED = 3  # records refused for one reason that are named; the others are counted

Legal = Callable[[TuningRecord], "str | None"]


@dataclass(frozen=True, slots=True)
class Match:
    """The record taken, or None for the default schedule; the rung of the ladder it stands on, one
    of RUNGS; and, a line each, what was taken and why everything else was not."""

    record: TuningRecord | None
    rung: str
    reasons: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Candidate:
    log: TuningLog
    record: TuningRecord
    rung: str
    rank: tuple[float, ...]


def match(
    workload: AttentionWorkload,
    target: HardwareTarget,
    logs: Iterable[TuningLog] | None = None,
    *,
    legal: Legal | None = None,
    expression: str | None = None,
    threads: int | None = None,
) -> Match:
    """The best record for a workload on a target; never an error.

    logs: what to choose from; all user and shipped logs by default.
    legal: says why the design space does not allow a record's decisions, or None if it does.
    expression: digest of the expression as it is now; records of another one are refused.
    threads: threads the kernel will use, the target's cores by default; a preference only.

    The order is: measured before modelled, rung, nearest instruction set, the very head dimensions before
    near ones, the same options before others, user before shipped, near lengths before far ones, the same
    thread count, the least ratio of tuned to default seconds.
    """
    candidates: list[_Candidate] = []
    refusals: list[str] = []
    for log in available_logs() if logs is None else logs:
        if log.refusal is not None:
            refusals.append(f"refused whole: {log.refusal}")
        refused: dict[str, list[TuningRecord]] = {}
        for record in log.records:
            reason = refusal(record, workload, target, expression)
            reason = reason or (legal(record) if legal else None)
            if reason is None:
                rung, rank = _place(record, log, workload, target, threads or target.cores)
                candidates.append(_Candidate(log, record, rung, rank))
            else:
                refused.setdefault(reason, []).append(record)
        refusals += [f"{log.name}: {_listed(r)}: refused: {why}" for why, r in refused.items()]
    candidates.sort(key=lambda c: c.rank)
    return _decide(candidates, refusals, workload, target)


def _decide(
    candidates: list[_Candidate],
    refusals: list[str],
    workload: AttentionWorkload,
    target: HardwareTarget,
) -> Match:
    if not candidates:
        line = f"{DEFAULT_SCHEDULE}: taken: no tuning record fits {target.name}"
        return Match(None, DEFAULT_SCHEDULE, (line, *refusals))
    taken, *others = candidates
    notes = "".join(f"; {note}" for note in _notes(taken.record, workload, target))
    lines = [f"{taken.log.name}: {taken.record}: taken: {taken.rung}{notes}"]
    for other in others:
        kind = "" if other.record.measured else ", modelled"
        lines.append(f"{other.log.name}: {other.record}: outranked: {other.rung}{kind}")
    return Match(taken.record, taken.rung, (*lines, *refusals))


def _place(
    record: TuningRecord,
    log: TuningLog,
    workload: AttentionWorkload,
    target: HardwareTarget,
    threads: int,
) -> tuple[str, tuple[float, ...]]:
    """The rung and the sort key of a record that was not refused."""
    rung = rung_of(record, target) or DEFAULT_SCHEDULE
    tuned, isa = record.workload, record.hardware["isa"]
    rank = (
        not record.measured,
        RUNGS.index(rung),
        0 if isa == target.isa else 1 + levels_below(target).index(isa),
        dim_ratio(tuned, workload),
        feature_distance(tuned, workload),
        not log.user,
        length_distance(tuned, workload),
        record.threads != threads,
        record.ratio,
    )
    return rung, rank


def _notes(record: TuningRecord, workload: AttentionWorkload, target: HardwareTarget) -> list[str]:
    """What the user should know about a record that does not fit in every way."""
    tuned, there = record.workload, record.hardware
    notes = []
    if dims(tuned) != dims(workload):
        notes.append(f"head dimensions {dims(tuned)} are the nearest tuned to {dims(workload)}")
    if feature_distance(tuned, workload):
        notes.append("its schedule, tuned with other options")
    if there["isa"] != target.isa:
        notes.append(f"tuned for {there['isa']}, this machine has {target.isa}")
    if not (there["l1d"] and there["l2"] and target.l1d and target.l2):
        notes.append("cache sizes not all known, so not all compared")
    if not record.measured:
        notes.append(f"modelled by {record.provenance['on']}, not measured")
    return notes


def _listed(records: list[TuningRecord]) -> str:
    more = len(records) - _NAMED
    return ", ".join(map(str, records[:_NAMED])) + (f" and {more} more" if more > 0 else "")
