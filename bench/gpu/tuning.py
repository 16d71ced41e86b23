"""The fastest of the candidates that were built for a workload."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np

from bench.gpu.bundle import Bundle, kernel
from bench.gpu.classes import Search
from bench.gpu.correctness import ERROR_LIMIT, OnPlace
from bench.gpu.journal import Journal, Values
from bench.gpu.place import Place
from tvm_attention.cuda.kernel import DeviceKernel
from tvm_attention.errors import TuningError
from tvm_attention.schedules import Candidate

SAMPLES = 5
HOPELESS = 3.0  # times slower than the best: not timed again
FINALISTS = 3
ROUNDS = 15
PART, CONFIRMED = "tuning", "confirmed"

Timed = tuple[float, Candidate]


def tune(place: Place, bundle: Bundle, search: Search, journal: Journal, deadline: float) -> None:
    """Time the candidates one by one until the deadline (time.monotonic), then the best in turns."""
    done = journal.done(PART)
    if len(journal.done(CONFIRMED)) and search.name in journal.done(CONFIRMED):
        return
    on = OnPlace(place, search.workload)
    for n, candidate in enumerate(search.candidates):
        if n and time.monotonic() > deadline:
            break
        best = min((v["seconds"] for u, v in done.items() if _is_of(u, search)), default=np.inf)
        made = kernel(bundle, place, search.workload, candidate)
        unit = f"{search.name}: {candidate}"
        journal.run(PART, unit, _timing(place, on, made, float(best)))
        done = journal.done(PART)
    times = [(done[u]["seconds"], c) for u, c in _units(search) if u in done]
    journal.run(CONFIRMED, search.name, lambda: _confirmed(place, bundle, search, on, times))


def _timing(place: Place, on: OnPlace, made: DeviceKernel, best: float) -> Callable[[], Values]:
    def work() -> Values:
        on.poison()
        on.run(made)
        error = on.error()
        if not error <= ERROR_LIMIT:
            raise TuningError(f"wrong result: {error:.3g} times the error that is promised")
        first = place.seconds([lambda: on.run(made)])[0]
        samples = [first]
        if first <= HOPELESS * best:
            samples = place.seconds([lambda: on.run(made)] * SAMPLES)
        return {"seconds": float(np.median(samples)), "error": error}

    return work


def _confirmed(
    place: Place, bundle: Bundle, search: Search, on: OnPlace, times: list[Timed]
) -> Values:
    """The best and the default schedule, timed in turns."""
    if not times:
        raise TuningError("no candidate could be timed")
    default = search.candidates[0]
    finalists = [c for _, c in sorted(times, key=lambda t: t[0])[:FINALISTS]]
    chosen = list(dict.fromkeys([default, *finalists]))
    kernels = [kernel(bundle, place, search.workload, c) for c in chosen]
    rounds = in_turns(place, [lambda k=k: on.run(k) for k in kernels], ROUNDS)  # type: ignore[misc]
    medians = [float(np.median(r)) for r in rounds]
    winner = int(np.argmin(medians))
    spread = float(np.subtract(*np.percentile(rounds[winner], (75, 25))))
    return {
        "variant": chosen[winner].variant,
        "decisions": dict(chosen[winner].decisions),
        "seconds": {"tuned": medians[winner], "default": medians[0], "spread": spread},
        "trials": len(times),
    }


def in_turns(place: Place, calls: list[Callable[[], object]], rounds: int) -> list[list[float]]:
    """Seconds of each call in each round: A B C, C B A, ..."""
    found: list[list[float]] = [[] for _ in calls]
    for n in range(rounds):
        order = list(range(len(calls)))[:: -1 if n % 2 else 1]
        for i, seconds in zip(order, place.seconds([calls[i] for i in order]), strict=True):
            found[i].append(seconds)
    return found


def _units(search: Search) -> list[tuple[str, Candidate]]:
    return [(f"{search.name}: {c}", c) for c in search.candidates]


def _is_of(unit: str, search: Search) -> bool:
    return unit.startswith(f"{search.name}: ")
