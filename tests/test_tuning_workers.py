"""Tuning's child processes: what a task that fails costs, and how it is said."""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Iterator

import faulty_trials
import pytest

from tvm_attention.tuning import limits, trials, workers
from tvm_attention.tuning.workers import Workers


@pytest.fixture
def pool(monkeypatch: pytest.MonkeyPatch) -> Iterator[Workers]:
    """Two builders and a runner that run stand-ins."""
    for name in ("start", "build", "measure", "confirm"):
        monkeypatch.setattr(trials, name, getattr(faulty_trials, name))
    for name in ("BUILD_TIMEOUT", "MEASURE_TIMEOUT", "CONFIRM_TIMEOUT"):
        monkeypatch.setattr(workers, name, 5.0)
    with Workers(2) as made:
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


def test_each_build_has_its_own_outcome(pool: Workers) -> None:
    assert pool.build([(fate,) for fate in FATES]) == list(FATES.values())
    assert pool.build([]) == []
    assert pool.build([("again",)]) == [("built again", "")]


def test_builders_are_no_burden(pool: Workers) -> None:
    own = os.nice(0)
    assert pool.build([("limits",)]) == [(f"{min(19, own + limits.BUILDER_NICENESS)} 0", "")]
    assert pool.measure("limits") == (f"{own} 0", "")


@pytest.mark.parametrize("task", ["measure", "confirm"])
def test_each_measurement_has_its_own_outcome(pool: Workers, task: str) -> None:
    run = getattr(pool, task)
    assert [run(fate) for fate in FATES] == list(FATES.values())


def test_leaving_ends_tasks_under_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """An interrupt must not wait for a build that hangs."""
    for name in ("start", "build"):
        monkeypatch.setattr(trials, name, getattr(faulty_trials, name))
    with Workers(1) as pool:
        hanging = pool._builders.schedule(trials.build, ("hang",))
        while not hanging.running():  # a task that no worker has taken yet is merely dropped
            time.sleep(0.01)
        assert multiprocessing.active_children()
    assert not multiprocessing.active_children()
