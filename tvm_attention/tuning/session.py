"""Tuning: search, confirm against the default schedule, record."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import date
from importlib.metadata import version
from pathlib import Path

from tvm_attention import environment
from tvm_attention.database import (
    SCHEMA,
    Provenance,
    Seconds,
    TuningRecord,
    available_logs,
    merge_into_log,
    read_log,
    user_log_path,
)
from tvm_attention.digest import EXPRESSION_DIGEST
from tvm_attention.errors import InvalidValueError
from tvm_attention.functional import forget_calls
from tvm_attention.operands import check_threads
from tvm_attention.runtime import forget_kernels
from tvm_attention.schedules import Candidate, schedules_for
from tvm_attention.target import HardwareTarget, detect_target
from tvm_attention.tuning.journal import Journal, Trial
from tvm_attention.tuning.progress import (
    Report,
    TuningOutcome,
    TuningProgress,
    TuningResult,
)
from tvm_attention.tuning.workers import Workers
from tvm_attention.workload import AttentionWorkload

BATCH = 8
FINALISTS = 3
PATIENCE = 24  # trials without an improvement of IMPROVEMENT end a search
IMPROVEMENT = 0.01
TIE = 0.99  # a record must be at least this much faster than the default schedule
SEEDS = 4


def tune(
    workloads: AttentionWorkload | Sequence[AttentionWorkload],
    target: str | HardwareTarget | None = None,
    *,
    trials: int = 64,
    minutes: float | None = None,
    log: Path | str | None = None,
    num_threads: int | None = None,
    seed: int = 0,
    progress: Report | None = None,
) -> TuningResult:
    """Search for the fastest schedule of each workload on this machine and record what beats the default.

    target: a name this machine can run ("x86-64-v3" tunes with code limited to that level); default
        what was detected. trials: candidates measured a workload, at most. minutes: time for all
        workloads together; a search under way is confirmed with what it found. log: file to merge the
        records into; default the user's log folder, where :func:`load` finds them at the next call.
        num_threads: threads of the measurements, default this process's cores.

    Every trial is journalled: after an interruption (KeyboardInterrupt returns, with ``interrupted``
    set) the same call goes on where it was. Candidates are built and run in child processes.

    Raises InvalidValueError or InvalidTypeError for bad arguments.
    """
    todo = [workloads] if isinstance(workloads, AttentionWorkload) else list(workloads)
    hardware = target if isinstance(target, HardwareTarget) else detect_target(target)
    check_threads(num_threads)
    if trials < 1 or (minutes is not None and not minutes > 0):
        raise InvalidValueError(
            f"budget: expected at least 1 trial and more than 0 minutes, got {trials} and {minutes}"
        )
    threads = num_threads or environment.num_threads() or hardware.cores
    path = user_log_path(hardware.name) if log is None else Path(log)
    deadline = None if minutes is None else time.monotonic() + 60 * minutes
    outcomes: list[TuningOutcome] = []
    records: list[TuningRecord] = []
    interrupted = False
    with Workers(hardware.cores) as workers:
        for index, workload in enumerate(todo):
            session = _Session(
                workload, hardware, threads, trials, deadline, path, seed, workers,
                progress or (lambda _: None), index, len(todo),
            )  # fmt: skip
            try:
                outcome, record = session.run()
            except KeyboardInterrupt:
                interrupted = True
                break
            outcomes.append(outcome)
            if record is not None:
                merge_into_log(path, [record])
                records.append(record)
            if deadline is not None and time.monotonic() >= deadline:
                break
    forget_kernels()
    forget_calls()
    return TuningResult(
        records=tuple(records), outcomes=tuple(outcomes), log=path, interrupted=interrupted
    )


@dataclass
class _Session:
    """The tuning of one workload."""

    workload: AttentionWorkload
    target: HardwareTarget
    threads: int
    trials: int
    deadline: float | None
    log: Path
    seed: int
    workers: Workers
    progress: Report
    index: int
    count: int
    start: float = field(default_factory=time.monotonic)
    done: list[Trial] = field(default_factory=list)
    resumed: int = 0

    def run(self) -> tuple[TuningOutcome, TuningRecord | None]:
        journal = Journal(self.workload, self.target, self.threads)
        self.done, ended = journal.read()
        self.resumed = len(self.done)
        if ended is not None and (len(self.done) >= self.trials or ended == _SETTLED):
            self._report("skipped")
            return self._outcome(None, None, None, False, f"already tuned: {ended}"), None
        settled = self._search(journal)
        self._report("confirm")
        outcome, record = self._confirm()
        if self.deadline is None or time.monotonic() < self.deadline:
            journal.end(_SETTLED if settled else "all trials used")
        self._report("done")
        return outcome, record

    def _search(self, journal: Journal) -> bool:
        """Measure candidates until the budget is used (False) or nothing improves (True)."""
        from tvm_attention.tuning.strategy import CandidateSearch

        schedules = schedules_for(self.target)
        machine = schedules.machine_parameters(self.target)
        space = schedules.design_space(self.workload, machine)
        seeds = [schedules.default_candidate(self.workload, machine), *self._seeds()]
        search = CandidateSearch(
            self.workload, self.target, space, seeds, self.seed + len(self.done)
        )
        search.learn(self.done)
        while len(self.done) < self.trials and not self._late():
            if self._settled():
                return True
            batch = search.propose(min(BATCH, self.trials - len(self.done)))
            if not batch:
                return True
            measured = self._measure(batch, journal)
            search.learn(measured)
        return self._settled()

    def _measure(self, batch: list[Candidate], journal: Journal) -> list[Trial]:
        built = self.workers.build([(self.workload, self.target, c) for c in batch])
        measured = []
        for candidate, (source, error) in zip(batch, built, strict=True):
            seconds = None
            if source is not None:
                best = self._best()
                limit = float("inf") if best is None else best
                seconds, error = self.workers.measure(
                    source, self.workload, candidate, self.threads, limit
                )
            trial = Trial(candidate, seconds, error)
            journal.add(trial)
            measured.append(trial)
            self.done.append(trial)
            self._report("search")
        return measured

    def _confirm(self) -> tuple[TuningOutcome, TuningRecord | None]:
        """Re-measure the finalists in turns with the default schedule."""
        schedules = schedules_for(self.target)
        default = schedules.default_candidate(
            self.workload, schedules.machine_parameters(self.target)
        )
        ranked = sorted((t for t in self.done if t.seconds), key=lambda t: t.seconds or 0.0)
        finalists = [t.candidate for t in ranked if t.candidate != default][:FINALISTS]
        if not finalists:
            return self._outcome(None, None, None, False, "no candidate ran"), None
        candidates = [default, *finalists]
        built = self.workers.build([(self.workload, self.target, c) for c in candidates])
        if any(source is None for source, _ in built):
            return self._outcome(None, None, None, False, "a finalist did not build again"), None
        sources = [source for source, _ in built]
        found, error = self.workers.confirm(sources, self.workload, candidates, self.threads)
        if found is None:
            return self._outcome(None, None, None, False, f"confirmation: {error}"), None
        best = min(range(1, len(found)), key=lambda n: float(found[n].ratio))
        base, winner = found[0], found[best]
        reason = f"{1 / winner.ratio:.2f} times the default schedule's speed"
        kept = winner.ratio < TIE
        outcome = self._outcome(
            candidates[best],
            winner.seconds,
            base.seconds,
            kept,
            reason if kept else f"not kept: {reason}",
        )
        return outcome, self._record(candidates[best], base, winner) if kept else None

    def _record(self, candidate: Candidate, base: object, winner: object) -> TuningRecord:
        from tvm_attention.tuning.trials import Finalist

        assert isinstance(base, Finalist)
        assert isinstance(winner, Finalist)
        return TuningRecord(
            schema=SCHEMA,
            target=self.target.name,
            workload=self.workload,
            length_class=self.workload.length_class,
            variant=candidate.variant,
            decisions=dict(candidate.decisions),
            # The ratio comes from rounds that measured both; the default's time is stated to match.
            seconds=Seconds(
                tuned=_rounded(winner.seconds),
                default=_rounded(winner.seconds / winner.ratio),
                spread=_rounded(winner.seconds * (winner.high - winner.low)),
            ),
            hardware=self.target.facts(),
            threads=self.threads,
            tvm=version("apache-tvm"),
            expression=EXPRESSION_DIGEST,
            provenance=Provenance(
                kind="measured", on=self.target.model or self.target.name, trials=len(self.done)
            ),
            date=date.today().isoformat(),
        )

    def _seeds(self) -> list[Candidate]:
        """Candidates of the nearest records, of any target and head dimension."""
        known = [record for log in available_logs() for record in log.records]
        known += read_log(self.log) if self.log.exists() else ()
        near: dict[Candidate, float] = {}
        w = self.workload
        for record in known:
            other = record.workload
            if (record.length_class, bool(other.causal)) != (w.length_class, bool(w.causal)):
                continue
            far = max(other.head_dim / w.head_dim, w.head_dim / other.head_dim)
            far += 4.0 * (record.target != self.target.name)
            candidate = Candidate.of(record.variant, record.decisions)
            near[candidate] = min(far, near.get(candidate, far))
        return sorted(near, key=lambda c: near[c])[:SEEDS]

    def _best(self) -> float | None:
        return min((t.seconds for t in self.done if t.seconds is not None), default=None)

    def _settled(self) -> bool:
        """Whether the last PATIENCE trials brought nothing."""
        if len(self.done) <= PATIENCE:
            return False
        times = [t.seconds if t.seconds is not None else float("inf") for t in self.done]
        return min(times[-PATIENCE:]) > (1 - IMPROVEMENT) * min(times[:-PATIENCE])

    def _late(self) -> bool:
        return self.deadline is not None and time.monotonic() >= self.deadline

    def _report(self, phase: str) -> None:
        elapsed = time.monotonic() - self.start
        new = len(self.done) - self.resumed
        left = None if not new else elapsed / new * (self.trials - len(self.done))
        if left is not None and self.deadline is not None:
            left = max(0.0, min(left, self.deadline - time.monotonic()))
        default = self.done[0].seconds if self.done else None
        self.progress(
            TuningProgress(
                workload=self.workload,
                index=self.index,
                count=self.count,
                phase=phase,
                trial=len(self.done),
                trials=self.trials,
                best=self._best(),
                default=default,
                failures=Counter(t.error for t in self.done if t.seconds is None),
                elapsed=elapsed,
                remaining=left,
            )
        )

    def _outcome(
        self,
        best: Candidate | None,
        tuned: float | None,
        default: float | None,
        kept: bool,
        reason: str,
    ) -> TuningOutcome:
        return TuningOutcome(
            workload=self.workload, best=best, tuned=tuned, default=default, kept=kept,
            reason=reason, trials=len(self.done),
        )  # fmt: skip


_SETTLED = "nothing improved any more"


def _rounded(seconds: float) -> float:
    return float(f"{seconds:.4g}")
