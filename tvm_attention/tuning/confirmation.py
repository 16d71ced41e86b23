"""The end of a search: finalists against the default schedule, and the record of a winner."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date
from importlib.metadata import version
from typing import TYPE_CHECKING

from tvm_attention.database import SCHEMA, Provenance, Seconds, TuningRecord
from tvm_attention.digest import EXPRESSIONS
from tvm_attention.schedules import Candidate, schedules_for
from tvm_attention.target import HardwareTarget
from tvm_attention.tuning.journal import Trial
from tvm_attention.tuning.place import Workers
from tvm_attention.workload import AttentionWorkload

if TYPE_CHECKING:
    from tvm_attention.tuning.trials import Finalist

FINALISTS = 3
# Of the default schedule's time: what takes more is no better. The default wins, which knows other sizes too.
TIE = 0.97


@dataclass(frozen=True, slots=True)
class Finding:
    """The winner among the finalists and the default schedule, timed in turns with the latter; None
    where nothing could be timed."""

    candidate: Candidate | None
    winner: Finalist | None
    base: Finalist | None
    reason: str


def confirm(
    workload: AttentionWorkload,
    target: HardwareTarget,
    threads: int,
    done: Sequence[Trial],
    workers: Workers,
) -> Finding:
    """Re-measure the best trials in turns with the default schedule, all checked against float64."""
    schedules = schedules_for(target)
    default = schedules.default_candidate(workload, schedules.machine_parameters(target))
    ranked = sorted((t for t in done if t.seconds), key=lambda t: t.seconds or 0.0)
    finalists = [t.candidate for t in ranked if t.candidate != default][:FINALISTS]
    if not finalists:
        return Finding(None, None, None, _why_none(done))
    candidates = [default, *finalists]
    built = workers.build([(workload, target, c) for c in candidates])
    if any(source is None for source, _ in built):
        return Finding(None, None, None, "a finalist did not build again")
    sources = [source for source, _ in built]
    found, error = workers.confirm(sources, workload, candidates, threads)
    if found is None:
        return Finding(None, None, None, f"confirmation: {error}")
    best = min(range(1, len(found)), key=lambda n: float(found[n].ratio))
    speed = f"{1 / found[best].ratio:.2f} times the default schedule's speed"
    if found[best].ratio < TIE:
        return Finding(candidates[best], found[best], found[0], speed)
    # Worth a record as well: without one, that of a neighbouring head dimension would be taken.
    return Finding(default, found[0], found[0], f"default schedule confirmed, next best {speed}")


def _why_none(done: Sequence[Trial]) -> str:
    """Why there is nothing to compare with the default schedule."""
    if any(t.seconds for t in done):
        return "nothing but the default schedule ran; give the search more trials"
    failures = Counter(t.error for t in done)
    return ", ".join(["no candidate ran", *(f"{n} {why}" for why, n in failures.most_common(3))])


def record_of(
    finding: Finding,
    workload: AttentionWorkload,
    target: HardwareTarget,
    threads: int,
    provenance: Provenance,
) -> TuningRecord:
    """The tuning record of a finding that has a winner."""
    candidate, winner = finding.candidate, finding.winner
    assert candidate is not None
    assert winner is not None
    return TuningRecord(
        schema=SCHEMA,
        target=target.name,
        workload=workload,
        length_class=workload.length_class,
        variant=candidate.variant,
        decisions=dict(candidate.decisions),
        # The ratio comes from rounds that measured both; the default's time is stated to match.
        seconds=Seconds(
            tuned=_rounded(winner.seconds),
            default=_rounded(winner.seconds / winner.ratio),
            spread=_rounded(winner.seconds * (winner.high - winner.low)),
        ),
        hardware=target.facts(),
        threads=threads,
        tvm=version("apache-tvm"),
        expression=EXPRESSIONS[target.kind],
        provenance=provenance,
        date=date.today().isoformat(),
    )


def _rounded(seconds: float) -> float:
    return float(f"{seconds:.4g}")
