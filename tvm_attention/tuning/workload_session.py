"""Tuning one workload: propose, measure, learn, until the budget is used or nothing improves; then
confirm and record."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

from tvm_attention.cuda.modelled import ranked
from tvm_attention.database import (
    TuningRecord,
    available_logs,
    left_to_measure,
    merge_into_log,
    read_log,
)
from tvm_attention.digest import EXPRESSIONS
from tvm_attention.schedules import Candidate, DesignSpace, schedules_for
from tvm_attention.target import HardwareTarget
from tvm_attention.tuning.confirmation import Finding, confirm, record_of
from tvm_attention.tuning.journal import Journal, Trial
from tvm_attention.tuning.place import Measurement, Place, Workers
from tvm_attention.tuning.progress import Report, TuningOutcome, TuningProgress
from tvm_attention.workload import AttentionWorkload

BATCH = 8
PATIENCE = 24  # trials without an improvement of IMPROVEMENT end a search
IMPROVEMENT = 0.01
SEEDS = 4
MODELLED = 8
SETTLED = "nothing improved any more"
EARLIER = "an earlier record is as fast or faster; again=True (--again) would replace it"


@dataclass
class WorkloadSession:
    """The tuning of one workload."""

    workload: AttentionWorkload
    target: HardwareTarget
    threads: int
    trials: int
    deadline: float | None
    log: Path
    journal: Journal
    seed: int
    place: Place
    workers: Workers
    progress: Report
    index: int
    count: int
    start: float = field(default_factory=time.monotonic)
    done: list[Trial] = field(default_factory=list)
    resumed: int = 0
    phase: str = "build"
    note: str = ""

    def say(self, note: str) -> None:
        """Report what the run waits for; "" when it goes on."""
        self.note = note
        self._report(self.phase)

    def run(self) -> tuple[TuningOutcome, TuningRecord | None]:
        """Search, confirm, record; the outcome, and the record if the log now holds it."""
        trials, ended = self.journal.read()
        space = self._space()  # which may have become narrower since
        self.done = [t for t in trials if space.refusal(t.candidate) is None]
        self.resumed = len(self.done)
        finished = ended == SETTLED or (ended is not None and len(self.done) >= self.trials)
        if finished and self._is_recorded():
            self._report("skipped")
            reason = f"already tuned: {ended}; again=True (--again) tunes it afresh"
            return self._outcome(Finding(None, None, None, reason), kept=False), None
        settled = self._search()
        self._report("confirm")
        finding = confirm(self.workload, self.target, self.threads, self.done, self.workers)
        record = None
        if finding.winner is not None:
            provenance = self.place.provenance(self.target, len(self.done))
            record = record_of(finding, self.workload, self.target, self.threads, provenance)
            if record not in merge_into_log(self.log, [record], replace=self.journal.again):
                record = None
                finding = replace(finding, reason=f"{finding.reason}, but {EARLIER}")
            # Only now: a search marked as ended is not confirmed again.
            if settled or len(self.done) >= self.trials:
                self.journal.end(SETTLED if settled else "all trials used")
        self._report("done")
        return self._outcome(finding, kept=record is not None), record

    def _space(self) -> DesignSpace:
        schedules = schedules_for(self.target)
        space: DesignSpace = schedules.design_space(
            self.workload, schedules.machine_parameters(self.target)
        )
        return space

    @cached_property
    def _default(self) -> Candidate:
        schedules = schedules_for(self.target)
        default: Candidate = schedules.default_candidate(
            self.workload, schedules.machine_parameters(self.target)
        )
        return default

    def _is_recorded(self) -> bool:
        """Whether the log has a record of this very workload; it may be another log than last time."""
        records = read_log(self.log) if self.log.exists() else ()
        return any(
            (r.workload, r.target, r.threads, r.expression)
            == (self.workload, self.target.name, self.threads, EXPRESSIONS[self.target.kind])
            for r in records
        )

    def _search(self) -> bool:
        """Measure candidates until the budget is used (False) or nothing improves (True)."""
        self._report("build")
        from tvm_attention.tuning.strategy import CandidateSearch

        schedules = schedules_for(self.target)
        machine = schedules.machine_parameters(self.target)
        seeds = [*schedules.starting_points(self.workload, machine), *self._seeds()]
        search = CandidateSearch(
            self.workload, self.target, self._space(), seeds, self.seed + len(self.done)
        )
        search.learn(self.done)
        while len(self.done) < self.trials and not self._late():
            if self._settled():
                return True
            batch = search.propose(min(BATCH, self.trials - len(self.done)))
            if not batch:
                return True
            measured = self._measure(batch)
            search.learn(measured)
        return self._settled()

    def _measure(self, batch: list[Candidate]) -> list[Trial]:
        self._report("build")
        outcomes = self.workers.build([(self.workload, self.target, c) for c in batch])
        tasks, measured = [], []
        for candidate, (built, error) in zip(batch, outcomes, strict=True):
            if built is None:
                measured.append(self._tried(Trial(candidate, None, error)))
            else:
                tasks.append(Measurement(built, self.workload, candidate, self.threads))
        for number, (seconds, error) in self.workers.measure(tasks, self._to_beat):
            measured.append(self._tried(Trial(tasks[number].candidate, seconds, error)))
        return measured

    def _tried(self, trial: Trial) -> Trial:
        self.journal.add(trial)
        self.done.append(trial)
        self._report("search")
        return trial

    def _to_beat(self) -> float:
        best = self._best()
        return float("inf") if best is None else best

    def _seeds(self) -> list[Candidate]:
        """What a model of this target left to be measured or, of a GPU, takes for the fastest, then
        candidates of the nearest records, of any target and head dimension."""
        known = [record for log in available_logs() for record in log.records]
        known += read_log(self.log) if self.log.exists() else ()
        near: dict[Candidate, float] = {}
        w = self.workload
        left: list[Candidate] = []
        for record in known:
            if (record.target, record.workload) == (self.target.name, w):
                left += [Candidate.of(*c) for c in left_to_measure(record)]
            other = record.workload
            if (record.length_class, bool(other.causal)) != (w.length_class, bool(w.causal)):
                continue
            far = max(other.head_dim / w.head_dim, w.head_dim / other.head_dim)
            far += 4.0 * (record.target != self.target.name)
            candidate = Candidate.of(record.variant, record.decisions)
            near[candidate] = min(far, near.get(candidate, far))
        if self.target.kind == "cuda":
            left += ranked(w, self.target, MODELLED)
        return [*left, *sorted(near, key=lambda c: near[c])[:SEEDS]]

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
        self.phase = phase
        elapsed = time.monotonic() - self.start
        new = len(self.done) - self.resumed
        left = None if not new else elapsed / new * (self.trials - len(self.done))
        if left is not None and self.deadline is not None:
            left = max(0.0, min(left, self.deadline - time.monotonic()))
        default = next((t.seconds for t in self.done if t.candidate == self._default), None)
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
                note=self.note,
            )
        )

    def _outcome(self, finding: Finding, *, kept: bool) -> TuningOutcome:
        winner, base = finding.winner, finding.base
        return TuningOutcome(
            workload=self.workload,
            best=finding.candidate,
            tuned=None if winner is None else winner.seconds,
            default=None if base is None else base.seconds,
            kept=kept,
            reason=finding.reason,
            trials=len(self.done),
        )
