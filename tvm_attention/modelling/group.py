"""Cores whose code is the same, modelled together: each candidate is compiled once for all of them."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tvm_attention.database import TuningRecord
from tvm_attention.errors import TuningError
from tvm_attention.modelling.code import Code
from tvm_attention.modelling.cores import Core
from tvm_attention.modelling.estimate import estimate
from tvm_attention.modelling.records import chosen, record_of, tool_name
from tvm_attention.modelling.search import ModelledSearch
from tvm_attention.modelling.workers import Compiler
from tvm_attention.schedules import Candidate, MachineParameters, schedules_for
from tvm_attention.target import HardwareTarget, named_target
from tvm_attention.tuning.journal import Journal, Trial
from tvm_attention.tuning.progress import Report, TuningOutcome, TuningProgress
from tvm_attention.workload import AttentionWorkload

_CARRIED = 3  # winners of earlier workloads that a search begins with
_ENDED = "all trials modelled"


@dataclass(frozen=True)
class Member:
    """A target, the model of its core and where its records go."""

    target: HardwareTarget
    core: Core
    log: Path

    @property
    def machine(self) -> MachineParameters:
        machine: MachineParameters = schedules_for(self.target).machine_parameters(self.target)
        return machine

    def default(self, workload: AttentionWorkload) -> Candidate:
        candidate: Candidate = schedules_for(self.target).default_candidate(workload, self.machine)
        return candidate

    def seconds(
        self, code: Code, workload: AttentionWorkload, candidate: Candidate
    ) -> tuple[float | None, str]:
        """(modelled seconds of a candidate's code, "") or (None, why there are none)."""
        try:
            found = estimate(code, workload, candidate, self.core, self.machine)
        except TuningError as error:
            return None, str(error)
        return found.cycles / (self.core.clock * 1e9), ""


Outcome = tuple[Member, TuningOutcome, TuningRecord | None]


@dataclass
class Group:
    """Members with one ``compiled_as``, and the winners so far, with which later searches begin."""

    members: Sequence[Member]
    trials: int
    seed: int
    again: bool
    _winners: list[Candidate] = field(default_factory=list)

    def tune(
        self,
        workload: AttentionWorkload,
        compiler: Compiler,
        deadline: float | None,
        progress: Report,
        place: tuple[int, int],
    ) -> list[Outcome]:
        """Models candidates for a workload until the budget is used: an outcome for each member, with
        its record."""
        start = time.monotonic()
        searches = [self._search(m, workload) for m in self.members]
        while any(len(s.done) < self.trials for s in searches):
            if deadline is not None and time.monotonic() >= deadline:
                break
            candidate = self._proposed(searches)
            if candidate is None:
                break
            self._model(candidate, workload, compiler, searches)
            first = searches[0]
            progress(first.moment("search", workload, self.trials, place, start))
        progress(searches[0].moment("done", workload, self.trials, place, start))
        return [self._outcome(s, workload) for s in searches]

    def _search(self, member: Member, workload: AttentionWorkload) -> _Search:
        schedules = schedules_for(member.target)
        space = schedules.design_space(workload, member.machine)
        defaults = [m.default(workload) for m in self.members]
        own = member.default(workload)
        seeds = [own, *defaults, *self._winners[-_CARRIED:]]
        model = f"{tool_name(member.core)}, {member.core.model_name}"
        journal = Journal(workload, member.target, member.target.cores, model)
        if self.again:
            journal.start_again()
        trials, _ = journal.read()
        done = [t for t in trials if space.refusal(t.candidate) is None]
        search = ModelledSearch(space, member.machine, seeds, self.seed + len(done))
        return _Search(member, search, journal, own, done)

    def _proposed(self, searches: Sequence[_Search]) -> Candidate | None:
        """A candidate that some member has not seen, the members proposing in turn."""
        least = min(searches, key=lambda s: len(s.done))
        begun = len(least.done) % len(searches)
        for search in (*searches[begun:], *searches[:begun]):
            candidate = search.search.propose(search.done)
            if candidate is not None:
                return candidate
        return None

    def _model(
        self,
        candidate: Candidate,
        workload: AttentionWorkload,
        compiler: Compiler,
        searches: Sequence[_Search],
    ) -> None:
        member = self.members[0]
        threads = member.target.cores
        compiled = member.target
        if compiled.kind == "arm":
            compiled = named_target(member.core.compiled_as, threads)
        code, error = compiler.code(workload, compiled, candidate, threads)
        for search in searches:
            seconds = None
            if code is not None:
                seconds, error = search.member.seconds(code, workload, candidate)
            trial = Trial(candidate, seconds, error)
            search.journal.add(trial)
            search.done.append(trial)

    def _outcome(self, search: _Search, workload: AttentionWorkload) -> Outcome:
        member, default = search.member, search.default
        best = chosen(search.done, default)
        if not best:
            failures = Counter(t.error for t in search.done if t.seconds is None)
            why = ", ".join(e for e, _ in failures.most_common(2)) or "nothing was modelled"
            reason = f"the default schedule was not modelled: {why}"
            return member, _told(workload, None, None, None, reason, len(search.done)), None
        if len(search.done) >= self.trials:
            search.journal.end(_ENDED)
        base = next(t.seconds for t in search.done if t.candidate == default and t.seconds)
        self._winners = [c for c in self._winners if c != best[0].candidate]
        self._winners.append(best[0].candidate)
        record = record_of(best, base, workload, member.target, member.core, len(search.done))
        reason = "default schedule confirmed by the model"
        if best[0].candidate != default:
            reason = f"modelled: {base / (best[0].seconds or base):.2f} times the default's speed"
        told = _told(workload, best[0].candidate, best[0].seconds, base, reason, len(search.done))
        return member, told, record


@dataclass
class _Search:
    """One member's part in the search of one workload."""

    member: Member
    search: ModelledSearch
    journal: Journal
    default: Candidate
    done: list[Trial]

    def moment(
        self,
        phase: str,
        workload: AttentionWorkload,
        trials: int,
        place: tuple[int, int],
        start: float,
    ) -> TuningProgress:
        timed = [t for t in self.done if t.seconds is not None]
        base = next((t.seconds for t in timed if t.candidate == self.default), None)
        elapsed = time.monotonic() - start
        return TuningProgress(
            workload=workload,
            index=place[0],
            count=place[1],
            phase=phase,
            trial=len(self.done),
            trials=trials,
            best=min((t.seconds for t in timed if t.seconds), default=None),
            default=base,
            failures=Counter(t.error for t in self.done if t.seconds is None),
            elapsed=elapsed,
            remaining=None,
        )


def _told(
    workload: AttentionWorkload,
    best: Candidate | None,
    tuned: float | None,
    default: float | None,
    reason: str,
    trials: int,
) -> TuningOutcome:
    return TuningOutcome(
        workload=workload,
        best=best,
        tuned=tuned,
        default=default,
        kept=best is not None,
        reason=reason,
        trials=trials,
    )
