"""Workers for tests of tuning that build nothing, and make up times."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any

import pytest

from tvm_attention.schedules import Candidate, schedules_for
from tvm_attention.target import detect_target
from tvm_attention.tuning import this_machine
from tvm_attention.tuning.confirmation import FINALISTS
from tvm_attention.tuning.place import Measurement
from tvm_attention.tuning.trials import Finalist
from tvm_attention.workload import AttentionWorkload

WORKLOAD = AttentionWorkload(head_dim=32, query_heads=2, query_length=48, key_length=40)
TARGET = detect_target()


def default() -> Candidate:
    schedules = schedules_for(TARGET)
    return schedules.default_candidate(WORKLOAD, schedules.machine_parameters(TARGET))


def seconds_of(candidate: Candidate) -> float:
    """A made-up time: more query rows a block are slower, the default is slow."""
    return 1e-3 * candidate["query_block"] * (3 if candidate == default() else 1)


class FakeWorkers:
    """Workers that build nothing. ``interrupt_at`` is the measurement at which Ctrl-C comes."""

    interrupt_at: int | None = None
    measured = 0
    default_wins = False

    def __init__(self, builders: int) -> None:
        assert builders >= 1

    def __enter__(self) -> FakeWorkers:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        return None

    def build(self, arguments: list[tuple[Any, ...]]) -> list[tuple[Any, str]]:
        return [(str(candidate), "") for _, _, candidate in arguments]

    def measure(self, tasks: list[Measurement], best: Any) -> Iterator[tuple[int, tuple[Any, str]]]:
        for number, task in enumerate(tasks):
            yield number, self.measured_one(task.candidate)

    def measured_one(self, candidate: Candidate) -> tuple[Any, str]:
        type(self).measured += 1
        if type(self).measured == type(self).interrupt_at:
            raise KeyboardInterrupt
        if dict(candidate.decisions).get("score_rows") == 4:
            return None, "wrong result"
        return seconds_of(candidate), ""

    def confirm(self, sources: Any, w: Any, candidates: list[Candidate], threads: int) -> Any:
        assert candidates[0] == default()
        assert 2 <= len(candidates) <= 1 + FINALISTS
        base = seconds_of(candidates[0])
        times = [seconds_of(c) for c in candidates]
        if self.default_wins:
            times = [base, *(2 * base for _ in candidates[1:])]
        return [Finalist(t, t / base, 0.9 * t / base, 1.1 * t / base) for t in times], ""


def faked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> type[FakeWorkers]:
    """Puts such workers in the place of this machine's, until the test ends."""

    class Fresh(FakeWorkers):
        pass

    monkeypatch.setattr(this_machine, "LocalWorkers", Fresh)
    monkeypatch.setenv("TVM_ATTENTION_CACHE_DIR", str(tmp_path / "cache"))
    return Fresh


def log_path(tmp_path: Path) -> Path:
    return tmp_path / TARGET.name / "tuned.jsonl"
