"""Tuning: what is checked before a run, and its workloads in turn."""

from __future__ import annotations

import time
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from tvm_attention import environment
from tvm_attention.database import (
    TuningRecord,
    require_mergeable,
    searched_target,
    user_log_path,
)
from tvm_attention.errors import InvalidValueError, TuningError
from tvm_attention.functional import forget_calls
from tvm_attention.operands import check_threads
from tvm_attention.processes import interrupts_kept
from tvm_attention.runtime import forget_kernels
from tvm_attention.target import HardwareTarget
from tvm_attention.tuning.journal import Journal
from tvm_attention.tuning.place import Place, PlaceLostError
from tvm_attention.tuning.progress import Report, TuningOutcome, TuningResult
from tvm_attention.tuning.this_gpu import ThisGpu
from tvm_attention.tuning.this_machine import ThisMachine
from tvm_attention.tuning.workload_session import WorkloadSession
from tvm_attention.workload import AttentionWorkload


def tune(
    workloads: AttentionWorkload | Sequence[AttentionWorkload],
    target: str | HardwareTarget | None = None,
    *,
    trials: int = 64,
    minutes: float | None = None,
    log: Path | str | None = None,
    num_threads: int | None = None,
    seed: int = 0,
    again: bool = False,
    on: Place | None = None,
    progress: Report | None = None,
) -> TuningResult:
    """Search for the fastest schedule of each workload on a machine and record what beats the default.

    target: a name the machine can run ("x86-64-v3" tunes with code limited to that level); default
        what was detected. "cuda", or its name ("cuda-sm_87"), is the machine's first GPU. trials:
        candidates measured a workload, at most. minutes: time for all workloads together; a search under
        way is confirmed with what it found. log: file to merge the records into; default the user's log
        folder, where :func:`load` finds them at the next call. num_threads: threads of the measurements,
        default the machine's cores. again: tune afresh what is recorded or half done, and replace its
        record even by a slower one. on: where candidates are measured,
        :class:`tvm_attention.boards.Boards` for other machines; default this one.

    Every trial is journalled: after an interruption (KeyboardInterrupt returns, with ``interrupted``
    set) the same call, without ``again``, goes on where it was. Candidates are built and run in child
    processes. ``stopped`` of the result says so if no board was left to measure on.

    Raises InvalidValueError or InvalidTypeError for bad arguments, TuningLogError or TuningError where
    the log or the journal cannot be written, both before anything is measured, and TuningError
    without the package xgboost.
    """
    todo = [workloads] if isinstance(workloads, AttentionWorkload) else list(workloads)
    place = on or _this(target)
    check_threads(num_threads)
    if trials < 1 or (minutes is not None and not minutes > 0):
        raise InvalidValueError(
            f"budget: expected at least 1 trial and more than 0 minutes, got {trials} and {minutes}"
        )
    hardware = place.hardware(target)
    threads = num_threads or place.threads(hardware)
    path = user_log_path(hardware.name) if log is None else Path(log)
    journals = [Journal(workload, hardware, threads) for workload in todo]
    _check_start(todo, hardware, path, place)
    for journal in journals:
        journal.start_again() if again else journal.prepare()
    deadline = None if minutes is None else time.monotonic() + 60 * minutes
    outcomes: list[TuningOutcome] = []
    records: list[TuningRecord] = []
    interrupted, stopped = False, ""
    session: WorkloadSession | None = None

    def say(note: str) -> None:
        if session is not None:
            session.say(note)

    with place.workers(hardware, say) as workers:
        for index, (workload, journal) in enumerate(zip(todo, journals, strict=True)):
            session = WorkloadSession(
                workload, hardware, threads, trials, deadline, path, journal, seed, place, workers,
                progress or (lambda _: None), index, len(todo),
            )  # fmt: skip
            try:
                with interrupts_kept():
                    outcome, record = session.run()
            except KeyboardInterrupt:
                interrupted = True
                break
            except PlaceLostError as error:
                stopped = str(error)
                break
            outcomes.append(outcome)
            if record is not None:
                records.append(record)
            if deadline is not None and time.monotonic() >= deadline:
                break
    forget_kernels()
    forget_calls()
    return TuningResult(
        records=tuple(records), outcomes=tuple(outcomes), log=path, interrupted=interrupted,
        stopped=stopped,
    )  # fmt: skip


def _this(target: str | HardwareTarget | None) -> Place:
    """This machine, or its GPU."""
    name = target.name if isinstance(target, HardwareTarget) else target or ""
    return ThisGpu() if name.strip().lower().startswith("cuda") else ThisMachine()


def _check_start(
    todo: Sequence[AttentionWorkload], target: HardwareTarget, log: Path, place: Place
) -> None:
    """Raises what would otherwise stop the run after hours of it."""
    if find_spec("xgboost") is None:
        raise TuningError(
            "tuning needs the package xgboost, its cost model, which is not installed; pip install "
            "xgboost, or xgboost-cpu, the same without its 0.7 GB for GPUs"
        )
    environment.cache_limit()  # a bad number would stop the first call of a tuned kernel
    for workload in todo:
        place.require_memory(workload)
    searched = searched_target(log)
    if searched not in (None, target.name):
        raise InvalidValueError(
            f"log: expected one in the folder of target {target.name}, got {log}, whose folder is "
            f"that of {searched}"
        )
    require_mergeable(log)
