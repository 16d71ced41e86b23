"""Child processes for tuning: builders side by side, and one that measures while they rest."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import TimeoutError as FutureTimeout
from dataclasses import dataclass
from functools import partial
from types import TracebackType
from typing import Any

from tvm_attention.errors import AttentionError
from tvm_attention.processes import end, process_pool
from tvm_attention.schedules import Candidate
from tvm_attention.target import HardwareTarget
from tvm_attention.tuning import limits, trials
from tvm_attention.tuning.place import Measurement, Outcome
from tvm_attention.workload import AttentionWorkload

BUILD_TIMEOUT = 120.0  # seconds; an ordinary build takes one, if nothing else runs
MEASURE_TIMEOUT = 60.0
CONFIRM_TIMEOUT = 300.0


@dataclass(frozen=True, slots=True)
class Tasks:
    """What child processes do in the place of the functions of these names in
    ``tvm_attention.tuning.trials``; ``start`` begins the one that measures."""

    build: Callable[..., Any]
    measure: Callable[..., Any]
    confirm: Callable[..., Any]
    start: Callable[[], None]


class LocalWorkers:
    """Builds run in ``builders`` processes, everything that is timed in one. None may take more than its
    share of the memory that is free. Use as a context."""

    def __init__(self, builders: int, tasks: Tasks | None = None) -> None:
        self._tasks: Any = tasks or trials
        self._builders = process_pool(builders, trials.builder_start(builders))
        start = partial(trials.start, limits.runner_bytes(), 0) if tasks is None else tasks.start
        self._runner = process_pool(1, start)

    def __enter__(self) -> LocalWorkers:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        end(self._builders, self._runner)

    def build(
        self, arguments: Sequence[tuple[AttentionWorkload, HardwareTarget, Candidate]]
    ) -> list[Outcome]:
        """The candidates, built side by side."""
        return built_side_by_side(self._builders, self._tasks.build, arguments)

    def measure(
        self, tasks: Sequence[Measurement], best: Callable[[], float]
    ) -> Iterator[tuple[int, Outcome]]:
        """One after the other."""
        for number, t in enumerate(tasks):
            arguments = (t.built, t.workload, t.candidate, t.threads, best())
            yield number, self._timed(self._tasks.measure, arguments, MEASURE_TIMEOUT)

    def confirm(
        self,
        built: Sequence[Any],
        workload: AttentionWorkload,
        candidates: Sequence[Candidate],
        threads: int,
    ) -> Outcome:
        """All in turns."""
        arguments = (list(built), workload, list(candidates), threads)
        return self._timed(self._tasks.confirm, arguments, CONFIRM_TIMEOUT)

    def _timed(self, task: Callable[..., Any], arguments: tuple[Any, ...], limit: float) -> Outcome:
        return outcome_of(self._runner.schedule(task, arguments, timeout=limit))


def built_side_by_side(
    pool: Any, task: Callable[..., Any], arguments: Sequence[tuple[Any, ...]]
) -> list[Outcome]:
    """A building task of each argument tuple, in a pool of processes."""
    futures = [pool.schedule(task, a, timeout=BUILD_TIMEOUT) for a in arguments]
    return [outcome_of(f) for f in futures]


def outcome_of(future: Any, *, whole: bool = False) -> Outcome:
    """What a task in a child process led to, once it has ended; of an error of ours its first words, or
    the ``whole``."""
    from pebble import ProcessExpired

    try:
        return future.result(), ""
    except FutureTimeout:
        return None, "timed out"
    except ProcessExpired as expired:
        return None, f"crashed (exit code {expired.exitcode})"
    except MemoryError:
        return None, "out of memory"
    except AttentionError as error:
        return None, str(error) if whole else str(error).split(":")[0]
    except Exception as error:
        return None, type(error).__name__
