"""Timing several calls against each other in one process, in turns: A B C, C B A, A B C, ...

Comparing two runs made one after the other compares the machine's mood as well; here every
contender is measured in every round and ratios are taken within a round. Each turn is an untimed
call, which brings caches and threads to where repeated calls find them, and then a burst of timed
ones.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from tvm_attention.errors import InvalidValueError

BURST_SECONDS = 0.005  # timed calls of one turn together, at least one call
BURST_CALLS = 50
UNHURRIED_SECONDS = 0.05  # a call this long needs no untimed one before it
PROBE_SECONDS = 0.02
# How long a pool keeps its workers spinning after a call differs: 0.1 s for OpenBLAS, 25 ms for
# onnxruntime, about 1 ms for the others. A pause ends when the process stops using the processor.
SETTLE_STEP_SECONDS = 0.002
SETTLE_LIMIT_SECONDS = 0.3
# Cores that idled through a pause need a while to be at full speed again.
WARM_SECONDS = 0.02


@dataclass(frozen=True, slots=True)
class Contender:
    """One of the calls measured against each other.

    ``pool`` names the thread pool it runs on. When the pool changes between two turns, the next
    turn waits until the last pool's idle threads stop spinning on cores that the next call needs.
    """

    name: str
    call: Callable[[], object]
    pool: str = "openmp"


@dataclass(frozen=True, slots=True)
class Quartiles:
    """Median and interquartile range of a sample."""

    median: float
    q1: float
    q3: float

    @classmethod
    def of(cls, sample: Sequence[float]) -> Quartiles:
        """Raises InvalidValueError for a sample that is empty or holds a NaN."""
        if not sample or any(map(math.isnan, sample)):
            raise InvalidValueError(f"quartiles: expected at least one number, got {sample!r}")
        q1, median, q3 = (float(x) for x in np.percentile(sample, (25, 50, 75)))
        return cls(median, q1, q3)

    def to_dict(self) -> dict[str, float]:
        return {"median": self.median, "q1": self.q1, "q3": self.q3}


@dataclass(frozen=True, slots=True)
class Rounds:
    """Seconds a call, by contender and round. A slow contender sits out some rounds."""

    seconds: Mapping[str, Mapping[int, float]]

    def time(self, name: str) -> Quartiles:
        """Seconds a call."""
        return Quartiles.of(list(self.seconds[name].values()))

    def ratio(self, name: str, base: str) -> Quartiles:
        """Time of ``name`` over time of ``base``, from the rounds that had both."""
        mine, other = self.seconds[name], self.seconds[base]
        return Quartiles.of([mine[r] / other[r] for r in sorted(mine.keys() & other.keys())])


def interleave(
    contenders: Sequence[Contender], seconds: float, *, least: int = 3, most: int = 200
) -> Rounds:
    """Time the contenders in turns for about ``seconds`` altogether.

    The first ``least`` rounds have everyone, however long they take. After that all get the same
    share of the time, so a slow contender sits out rounds, until ``seconds`` or ``most`` rounds are
    over. Raises InvalidValueError for no contenders or two of the same name.
    """
    names = [c.name for c in contenders]
    if not names or len(set(names)) != len(names):
        raise InvalidValueError(f"contenders: expected different names, got {names}")
    bursts = {c.name: _burst(c.call) for c in contenders}
    times: dict[str, dict[int, float]] = {name: {} for name in names}
    used = dict.fromkeys(names, 0.0)
    previous = None
    start = time.perf_counter()
    for index in range(most):
        if index >= least and time.perf_counter() - start >= seconds:
            break
        for contender in contenders if index % 2 == 0 else reversed(contenders):
            name = contender.name
            if index >= least and not _is_due(name, used, len(times[name])):
                continue
            if previous is not None and previous.pool != contender.pool:
                used[previous.name] += settle()
                used[previous.name] += _warm(contender.call)
            previous = contender
            before = time.perf_counter()
            times[name][index] = _turn(contender.call, bursts[name])
            used[name] += time.perf_counter() - before
    return Rounds(times)


def settle() -> float:
    """Wait until this process's threads are idle, 0.3 s at most; returns the seconds waited."""
    start = time.perf_counter()
    while time.perf_counter() - start < SETTLE_LIMIT_SECONDS:
        used = time.process_time()
        time.sleep(SETTLE_STEP_SECONDS)
        if time.process_time() - used < SETTLE_STEP_SECONDS / 4:
            break
    return time.perf_counter() - start


def _warm(call: Callable[[], object]) -> float:
    """Untimed calls after a pause; returns the seconds they took."""
    start = time.perf_counter()
    while time.perf_counter() - start < WARM_SECONDS:
        call()
    return time.perf_counter() - start


def _is_due(name: str, used: Mapping[str, float], turns: int) -> bool:
    """Whether a contender's next turn would not put it ahead of all others in time used."""
    others = [seconds for other, seconds in used.items() if other != name]
    return not others or used[name] - used[name] / turns <= max(others)


def _turn(call: Callable[[], object], burst: int) -> float:
    first = _timed(call)
    if burst == 1 and first >= UNHURRIED_SECONDS:
        return first
    return statistics.median(_timed(call) for _ in range(burst))


def _burst(call: Callable[[], object]) -> int:
    """How many calls fit into a turn, from as many as fit into 20 ms."""
    settle()
    best = _timed(call)
    end = time.perf_counter() + PROBE_SECONDS
    while best < UNHURRIED_SECONDS and time.perf_counter() < end:
        best = min(best, _timed(call))
    return max(1, min(BURST_CALLS, round(BURST_SECONDS / best)))


def _timed(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start
