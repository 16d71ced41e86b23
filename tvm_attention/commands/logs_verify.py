"""Verifying tuning records: each is replayed and compiled to machine code, and never run.

Builds run in child processes, so that a compiler that crashes costs one record.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import TimeoutError
from dataclasses import dataclass, replace
from typing import Any

from rich.console import Console

from tvm_attention.commands.arguments import whole_number
from tvm_attention.commands.bar import bar
from tvm_attention.commands.ending import error_text
from tvm_attention.commands.output import counted, say
from tvm_attention.cuda.verifying import verify_candidate
from tvm_attention.database import TuningLog, TuningRecord, verify
from tvm_attention.digest import EXPRESSIONS
from tvm_attention.errors import AttentionError, InvalidValueError, KernelBuildError
from tvm_attention.processes import process_pool
from tvm_attention.schedules import Candidate, schedules_for
from tvm_attention.schedules.cuda_space import kernel_of
from tvm_attention.target import HardwareTarget, features_of, named_target

JOBS = whole_number(1, 1024)
BUILD_SECONDS = 300.0  # an ordinary build takes one

Build = Callable[[TuningRecord], None]


@dataclass(frozen=True, slots=True)
class Report:
    """Every record with what is wrong with it, or None, and the reasons why logs were refused."""

    results: tuple[tuple[TuningRecord, str | None], ...]
    refused: tuple[str, ...]

    @property
    def holds(self) -> bool:
        """Whether there are records and all hold."""
        return bool(self.results) and not self.refused and not self._wrong()

    def to_dict(self) -> dict[str, object]:
        """The same as plain data."""
        records = [{"record": r.to_dict(), "error": error} for r, error in self.results]
        return {"ok": self.holds, "refused": list(self.refused), "records": records}

    def show(self, out: Console) -> None:
        """Prints a line for each record and one for all."""
        for record, error in self.results:
            line = f"ok    {record}" if error is None else f"FAIL  {record}: {error}"
            say(out, line, style="" if error is None else "red")
        for reason in self.refused:
            say(out, f"FAIL  {reason}", style="red")
        held = len(self.results) - self._wrong()
        say(
            out,
            f"{held} of {counted(len(self.results), 'record')} hold"
            if self.results
            else "no records",
        )

    def _wrong(self) -> int:
        return sum(error is not None for _, error in self.results)


def verify_logs(logs: Iterable[TuningLog], jobs: int | None = None) -> Report:
    """Builds every record of some logs, ``jobs`` at a time (default: as many as cores)."""
    logs = list(logs)
    records = [record for log in logs for record in log.records]
    refused = tuple(log.refusal for log in logs if log.refusal is not None)
    return Report(build_all(records, build_record, jobs), refused)


def build_all(
    records: list[TuningRecord], build: Build, jobs: int | None = None
) -> tuple[tuple[TuningRecord, str | None], ...]:
    """Calls ``build``, a function of a module, on each record in child processes."""
    workers = min(jobs or len(os.sched_getaffinity(0)), len(records)) or 1
    pool = process_pool(workers)
    try:
        current = [r for r in records if r.expression == EXPRESSIONS[r.hardware["kind"]]]
        futures = _started(pool, build, current)
        with bar(len(current)) as advance:

            def wait(record: TuningRecord) -> None:
                advance(str(record))
                future, place = futures[id(record)]
                error = _result(future)[place]
                if error is not None:
                    raise error

            results = verify(records, wait, EXPRESSIONS)
    finally:
        pool.stop()
        pool.join()
    return tuple((r, None if error is None else error_text(error)) for r, error in results)


def _started(
    pool: Any, build: Build, records: Sequence[TuningRecord]
) -> dict[int, tuple[Any, int]]:
    """Where each record's result will be: a task's future, and its place in that. One build serves all
    records of a kernel, and one process builds it for all targets, of which it keeps the source."""
    groups: dict[object, dict[object, TuningRecord]] = {}
    for r in records:
        groups.setdefault(same_source(r), {}).setdefault(same_kernel(r), r)
    places: dict[object, tuple[Any, int]] = {}
    for group in groups.values():
        arguments = (build, list(group.values()))
        future = pool.schedule(_build_each, arguments, timeout=BUILD_SECONDS * len(group))
        places |= {kernel: (future, n) for n, kernel in enumerate(group)}
    return {id(r): places[same_kernel(r)] for r in records}


def _build_each(build: Build, records: Sequence[TuningRecord]) -> list[AttentionError | None]:
    """What is wrong with each record."""
    found: list[AttentionError | None] = []
    for record in records:
        try:
            build(record)
            found.append(None)
        except AttentionError as error:
            found.append(error)
    return found


def build_record(record: TuningRecord) -> None:
    """Replays a record and compiles it to machine code for its target, here.

    Raises InvalidValueError if the design space does not allow it, KernelBuildError if it does not
    build, UnsupportedError for a kind of target without schedules. For a GPU it must also keep within the
    architecture's limits and in registers.
    """
    from tvm_attention.compiler import build_module

    target = recorded_target(record)
    schedules = schedules_for(target)
    space = schedules.design_space(record.workload, schedules.machine_parameters(target))
    candidate = Candidate.of(record.variant, record.decisions)
    refusal = space.refusal(candidate)
    if refusal is not None:
        raise InvalidValueError(f"the design space does not allow it: {refusal}")
    if target.kind == "cuda":
        verify_candidate(record.workload, target, candidate)
        return
    module = build_module(record.workload, target, candidate)
    try:
        module.mod.inspect_source("asm")  # TVM generates machine code only when it is asked for
    except Exception as error:
        raise KernelBuildError(f"no machine code for {target.name}: {error}") from error


def same_kernel(record: TuningRecord) -> object:
    """What records have in common that are verified by the same build."""
    if record.hardware["kind"] != "cuda":
        return id(record)
    return (record.target, same_source(record))


def same_source(record: TuningRecord) -> object:
    """What records have in common whose kernels are of the same source, maybe for several targets."""
    if record.hardware["kind"] != "cuda":
        return id(record)
    return kernel_of(record.workload), Candidate.of(record.variant, record.decisions)


def recorded_target(record: TuningRecord) -> HardwareTarget:
    """The target of a record with the caches and the level of the machine it was tuned on.

    Raises InvalidValueError for a name or level that is not known.
    """
    named, there = named_target(record.target), record.hardware
    features = named.features if there["isa"] == named.isa else features_of(there["isa"])
    return replace(
        named,
        isa=there["isa"],
        features=features,
        cores=there["cores"],
        l1d=there["l1d"],
        l2=there["l2"],
        l3=there["l3"],
        model=there["model"],
    )


def _result(build: Any) -> list[AttentionError | None]:
    from pebble import ProcessExpired

    try:
        found: list[AttentionError | None] = build.result()
        return found
    except ProcessExpired as expired:
        raise KernelBuildError(
            f"the process that built it died (exit code {expired.exitcode})"
        ) from None
    except TimeoutError:
        raise KernelBuildError(f"not built after {BUILD_SECONDS:g} s") from None
