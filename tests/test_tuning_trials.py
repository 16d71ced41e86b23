"""What a child process does with a candidate: build, check, time, compare."""

from __future__ import annotations

import gc
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from test_compute import decode_candidate, lanes_of, prefill_candidate

from tvm_attention.errors import KernelBuildError, TuningError
from tvm_attention.random_calls import random_call
from tvm_attention.schedules import Candidate, schedules_for
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


STORED = {"batch": 2, "query_heads": 4, "kv_heads": 2, "head_dim": 16, "value_dim": 16}
# Prefill and decoding each, over 40 keys: two pages and a half.
CALLS: list[dict[str, Any]] = [
    {"kv_dtype": "int8"},
    {"kv_dtype": "int8", "dtype": "bfloat16", "causal": "bottom_right"},
    {"paged": True},
    {"paged": True, "ragged": True, "window": (20, -1)},
    {
        "paged": True,
        "ragged": True,
        "kv_dtype": "int8",
        "sinks": True,
        "output": "attention_and_lse",
    },
    {"ragged": True, "mask": "bool"},
    {"ragged": True, "mask": "float32", "mask_dense": True, "causal": "bottom_right"},
    {"ragged": True, "mask": "float32", "mask_per_key": True, "output": "attention_and_lse"},
    {"output": "weights"},
    {"ragged": True, "mask": "bool", "output": "weights"},
]


def built(workload: AttentionWorkload) -> tuple[str, Candidate]:
    """The default schedule."""
    schedules = schedules_for(TARGET)
    candidate = schedules.default_candidate(workload, schedules.machine_parameters(TARGET))
    return trials.build(workload, TARGET, candidate), candidate


@pytest.mark.parametrize("rows", [20, 1])
@pytest.mark.parametrize("fields", CALLS, ids=lambda x: " ".join(map(str, x)))
def test_every_kind_of_workload_is_timed_and_confirmed(fields: dict[str, Any], rows: int) -> None:
    workload = AttentionWorkload(**STORED, **fields, query_length=rows, key_length=40)
    source, candidate = built(workload)
    assert 0 < trials.measure(source, workload, candidate, 2, float("inf")) < 60
    (found,) = trials.confirm([source], workload, [candidate], 2)
    assert 0 < found.seconds < 60


@pytest.mark.parametrize("spoilt", ["key", "value", "table", "lse"])
@pytest.mark.parametrize("rows", [20, 1])
def test_what_is_stored_is_what_is_checked(
    monkeypatch: pytest.MonkeyPatch, spoilt: str, rows: int
) -> None:
    """Another scale of one token, another order of pages, a sum of one row: each is a wrong result."""
    workload = AttentionWorkload(
        **STORED, kv_dtype="int8", paged=True, ragged=True, output="attention_and_lse",
        query_length=rows, key_length=40,
    )  # fmt: skip
    source, candidate = built(workload)
    problem = random_call(workload, seed=1)
    assert problem.call.scales is not None
    assert problem.call.pages is not None
    monkeypatch.setattr(trials, "_problem", lambda _: problem)
    call, (out, lse) = trials._prepared(source, workload, candidate, 1)
    trials._check(call, (out, lse), workload)

    def run() -> None:
        call()
        if spoilt == "lse":
            lse[1, 3, -1] += 1e-4

    if spoilt == "table":
        problem.call.pages.table[:] = problem.call.pages.table[:, ::-1].copy()
    elif spoilt != "lse":
        getattr(problem.call.scales, spoilt)[1, 1, 3] *= 1.1
    with pytest.raises(TuningError, match="wrong result: error"):
        trials._check(run, (out, lse), workload)


@pytest.mark.parametrize("spoilt", [np.nan, 1.0, 1e-5])
def test_a_wrong_result_is_never_timed(monkeypatch: pytest.MonkeyPatch, spoilt: float) -> None:
    """Also where one element alone is wrong."""
    candidate = candidates()[0]
    source = trials.build(PREFILL, TARGET, candidate)
    prepared = trials._prepared

    def spoiling(*arguments: Any) -> Any:
        call, (out, lse) = prepared(*arguments)

        def run() -> None:
            call()
            out[0, 1, -1, -1] += spoilt

        return run, (out, lse)

    monkeypatch.setattr(trials, "_prepared", spoiling)
    with pytest.raises(TuningError, match="wrong result: error"):
        trials.measure(source, PREFILL, candidate, 1, float("inf"))
    with pytest.raises(TuningError, match="wrong result: error"):
        trials.confirm([source], PREFILL, [candidate], 1)


def test_a_call_keeps_the_memory_it_writes_to() -> None:
    candidate = candidates()[0]
    source = trials.build(PREFILL, TARGET, candidate)
    call, (out, _) = trials._prepared(source, PREFILL, candidate, 1)
    address = out.ctypes.data
    del out, _
    gc.collect()
    others = [np.full((1, 2, 40, 64), 7.0, np.float32) for _ in range(200)]
    assert all(x.ctypes.data != address for x in others)
    call()
    assert all((x == 7.0).all() for x in others)


def test_what_cannot_be_built_is_said() -> None:
    impossible = candidates()[0].replace(score_vectors=-1)
    with pytest.raises(KernelBuildError, match="could not build row_block"):
        trials.build(PREFILL, TARGET, impossible)
