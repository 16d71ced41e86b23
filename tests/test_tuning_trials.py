"""What a child process does with a candidate: build, check, time, compare."""

from __future__ import annotations

import gc
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from test_compute import decode_candidate, lanes_of, prefill_candidate

from tvm_attention.errors import KernelBuildError, TuningError
from tvm_attention.schedules import Candidate
from tvm_attention.target import detect_target
from tvm_attention.tuning import trials
from tvm_attention.workload import AttentionWorkload

TARGET = detect_target()
PREFILL = AttentionWorkload(
    head_dim=48, value_dim=64, query_heads=2, query_length=40, key_length=50
)
DECODE = AttentionWorkload(head_dim=48, value_dim=64, query_heads=2, query_length=1, key_length=300)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trials, "MEASURE_SECONDS", 0.01)
    monkeypatch.setattr(trials, "CONFIRM_SECONDS", 0.02)


def candidates() -> list[Candidate]:
    names = ("row_block keys", "row_block values", "streaming packed")
    return [prefill_candidate(n, lanes_of(TARGET), 64) for n in names]


def test_finalists_are_compared_with_the_first() -> None:
    every = candidates()
    sources = [trials.build(PREFILL, TARGET, c) for c in every]
    found = trials.confirm(sources, PREFILL, every, 1)
    assert len(found) == 3
    assert (found[0].ratio, found[0].low, found[0].high) == (1.0, 1.0, 1.0)
    for finalist in found:
        assert 0 < finalist.low <= finalist.ratio <= finalist.high
        assert 0 < finalist.seconds < 60


@pytest.mark.parametrize("workload", [PREFILL, DECODE, replace(PREFILL, causal="bottom_right")])
def test_a_right_candidate_is_timed(workload: AttentionWorkload) -> None:
    candidate = decode_candidate(1) if workload is DECODE else candidates()[0]
    source = trials.build(workload, TARGET, candidate)
    seconds = trials.measure(source, workload, candidate, 2, float("inf"))
    assert 0 < seconds < 60
    assert 0 < trials.measure(source, workload, candidate, 2, 1e-12) < 60  # hopelessly slow


@pytest.mark.parametrize("spoilt", [np.nan, 1.0, 1e-5])
def test_a_wrong_result_is_never_timed(monkeypatch: pytest.MonkeyPatch, spoilt: float) -> None:
    """Also where one element alone is wrong."""
    candidate = candidates()[0]
    source = trials.build(PREFILL, TARGET, candidate)
    prepared = trials._prepared

    def spoiling(*arguments: Any) -> Any:
        call, out = prepared(*arguments)

        def run() -> None:
            call()
            out[0, 1, -1, -1] += spoilt

        return run, out

    monkeypatch.setattr(trials, "_prepared", spoiling)
    with pytest.raises(TuningError, match="wrong result: error"):
        trials.measure(source, PREFILL, candidate, 1, float("inf"))
    with pytest.raises(TuningError, match="wrong result: error"):
        trials.confirm([source], PREFILL, [candidate], 1)


def test_a_call_keeps_the_memory_it_writes_to() -> None:
    candidate = candidates()[0]
    source = trials.build(PREFILL, TARGET, candidate)
    call, out = trials._prepared(source, PREFILL, candidate, 1)
    address = out.ctypes.data
    del out
    gc.collect()
    others = [np.full((1, 2, 40, 64), 7.0, np.float32) for _ in range(200)]
    assert all(x.ctypes.data != address for x in others)
    call()
    assert all((x == 7.0).all() for x in others)


def test_what_cannot_be_built_is_said() -> None:
    impossible = candidates()[0].replace(score_vectors=-1)
    with pytest.raises(KernelBuildError, match="could not build row_block"):
        trials.build(PREFILL, TARGET, impossible)
