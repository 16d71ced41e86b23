"""Tuning's child processes: what a task that fails costs, and how it is said."""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Iterator

import faulty_trials
import pytest

from tvm_attention.schedules import Candidate
from tvm_attention.tuning import limits, trials, workers
from tvm_attention.tuning.place import Measurement
from tvm_attention.tuning.workers import LocalWorkers
from tvm_attention.workload import AttentionWorkload

WORKLOAD = AttentionWorkload(head_dim=16)
CANDIDATE = Candidate.of("row_block", {"query_block": 8})


@pytest.fixture
def pool(monkeypatch: pytest.MonkeyPatch) -> Iterator[LocalWorkers]:
    """Two builders and a runner that run stand-ins."""
    for name in ("start", "build", "measure", "confirm"):
        monkeypatch.setattr(trials, name, getattr(faulty_trials, name))
    for name in ("BUILD_TIMEOUT", "MEASURE_TIMEOUT", "CONFIRM_TIMEOUT"):
        monkeypatch.setattr(workers, name, 5.0)
    with LocalWorkers(2) as made:
        yield made


FATES = {
    "fine": ("built fine", ""),
    "exit": (None, "crashed (exit code 3)"),
    "wrong": (None, "wrong result"),
    "bug": (None, "KeyError"),
    "crash": (None, "crashed (exit code -6)"),
    "hang": (None, "timed out"),
    "greedy": (None, "out of memory"),
    "well": ("built well", ""),
}


def test_each_build_has_its_own_outcome(pool: LocalWorkers) -> None:
    assert pool.build([(fate,) for fate in FATES]) == list(FATES.values())
    assert pool.build([]) == []
    assert pool.build([("again",)]) == [("built again", "")]


def test_builders_are_no_burden(pool: LocalWorkers) -> None:
    own = os.nice(0)
    assert pool.build([("limits",)]) == [(f"{min(19, own + limits.BUILDER_NICENESS)} 0", "")]
    (measured,) = pool.measure([Measurement("limits", WORKLOAD, CANDIDATE, 1)], lambda: 1.0)
    assert measured == (0, (f"{own} 0", ""))


def test_each_measurement_has_its_own_outcome(pool: LocalWorkers) -> None:
    tasks = [Measurement(fate, WORKLOAD, CANDIDATE, 1) for fate in FATES]
    best = iter(range(len(FATES)))
    measured = pool.measure(tasks, lambda: float(next(best)))
    assert list(measured) == list(enumerate(FATES.values()))
    assert next(best, None) is None  # each was told what to beat


def test_each_confirmation_has_its_own_outcome(pool: LocalWorkers) -> None:
    outcomes = [pool.confirm([fate], WORKLOAD, [CANDIDATE], 1) for fate in FATES]
    assert outcomes == list(FATES.values())


def test_leaving_ends_tasks_under_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """An interrupt must not wait for a build that hangs."""
    for name in ("start", "build"):
        monkeypatch.setattr(trials, name, getattr(faulty_trials, name))
    with LocalWorkers(1) as pool:
        hanging = pool._builders.schedule(trials.build, ("hang",))
        while not hanging.running():  # a task that no worker has taken yet is merely dropped
            time.sleep(0.01)
        assert multiprocessing.active_children()
    assert not multiprocessing.active_children()
