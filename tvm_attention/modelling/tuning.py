"""Tuning without the machine: candidates are compiled for it and modelled, none is run."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from dataclasses import replace as with_changes
from pathlib import Path

from tvm_attention.database import TuningRecord, merge_into_log, user_log_path
from tvm_attention.errors import InvalidValueError
from tvm_attention.modelling import tools
from tvm_attention.modelling.cores import core_of
from tvm_attention.modelling.group import Group, Member, Outcome
from tvm_attention.modelling.records import modelled_target
from tvm_attention.modelling.self_check import require_checked
from tvm_attention.modelling.workers import Compiler
from tvm_attention.processes import interrupts_kept
from tvm_attention.tuning.progress import Report, TuningOutcome, TuningResult
from tvm_attention.tuning.workload_session import EARLIER
from tvm_attention.workload import AttentionWorkload

THREADS = 4  # of a machine that is not here


def tune_modelled(
    workloads: AttentionWorkload | Sequence[AttentionWorkload],
    targets: str | Sequence[str],
    *,
    trials: int = 16,
    minutes: float | None = None,
    log: Path | str | None = None,
    num_threads: int = THREADS,
    seed: int = 0,
    again: bool = False,
    progress: Report | None = None,
) -> dict[str, TuningResult]:
    """Search for the schedule of each workload that a model of the target's core believes fastest, and
    record it.

    targets: cores that there is a model of ("cortex-a72"); those whose code is the same are modelled from one
        compilation. trials: candidates modelled a workload, at most. minutes: time for everything. log:
        file to merge the records into, of one target only; default the user's log folder. num_threads:
        threads of the kernels. again: model afresh what is recorded or half done.

    Trials are journalled: the same call goes on where one was interrupted. A record says by what it was
    modelled, keeps the next best candidates, and serves only where no measured record may.

    Raises TuningError without llvm-mca and opt of LLVM 19, for a target without a model, and for a model that
    fails the check against its vendor's guide; InvalidValueError for bad arguments.
    """
    todo = [workloads] if isinstance(workloads, AttentionWorkload) else list(workloads)
    names = [targets] if isinstance(targets, str) else list(targets)
    _require_valid(names, log, trials, minutes)
    members = [_member(name, num_threads, log) for name in names]
    deadline = None if minutes is None else time.monotonic() + 60 * minutes
    results = {m.target.name: _Kept(m.log) for m in members}
    groups = [
        Group([m for m in members if m.core.compiled_as == code], trials, seed, again)
        for code in dict.fromkeys(m.core.compiled_as for m in members)
    ]
    interrupted = False
    try:
        with Compiler() as compiler, interrupts_kept():
            report = progress or (lambda _: None)
            for member, outcome, record in _outcomes(groups, todo, compiler, deadline, report):
                results[member.target.name].add(outcome, record, replace=again)
    except KeyboardInterrupt:
        interrupted = True
    return {name: kept.result(interrupted) for name, kept in results.items()}


def _require_valid(
    names: Sequence[str], log: Path | str | None, trials: int, minutes: float | None
) -> None:
    if log is not None and len(names) != 1:
        raise InvalidValueError(f"log: expected one target for a log of one's own, got {names}")
    if trials < 1 or (minutes is not None and not minutes > 0):
        raise InvalidValueError(
            f"budget: expected at least 1 trial and more than 0 minutes, got {trials} and {minutes}"
        )


def _outcomes(
    groups: Sequence[Group],
    todo: Sequence[AttentionWorkload],
    compiler: Compiler,
    deadline: float | None,
    report: Report,
) -> Iterator[Outcome]:
    for index, workload in enumerate(todo):
        if deadline is not None and time.monotonic() >= deadline:
            return
        for group in groups:
            yield from group.tune(workload, compiler, deadline, report, (index, len(todo)))


@dataclass
class _Kept:
    """What a target's log has been given."""

    log: Path
    records: list[TuningRecord] = field(default_factory=list)
    outcomes: list[TuningOutcome] = field(default_factory=list)

    def add(self, outcome: TuningOutcome, record: TuningRecord | None, *, replace: bool) -> None:
        if record is not None and record in merge_into_log(self.log, [record], replace=replace):
            self.records.append(record)
        elif record is not None:
            outcome = with_changes(outcome, kept=False, reason=f"{outcome.reason}, but {EARLIER}")
        self.outcomes.append(outcome)

    def result(self, interrupted: bool) -> TuningResult:
        return TuningResult(
            records=tuple(self.records),
            outcomes=tuple(self.outcomes),
            log=self.log,
            interrupted=interrupted,
        )


def _member(name: str, threads: int, log: Path | str | None) -> Member:
    target = modelled_target(name, threads)
    core = core_of(target)
    for program in ("opt", "llvm-mca"):
        tools.program(program)
    require_checked(core.name)
    path = user_log_path(target.name) if log is None else Path(log)
    return Member(target, core, path)
