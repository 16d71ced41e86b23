"""Tuning with real workers: what a candidate that crashes or hangs costs, and small searches."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pytest
from fake_workers import TARGET, WORKLOAD, default, log_path

import tvm_attention
from tvm_attention.database import read_log
from tvm_attention.tuning import trials, workers
from tvm_attention.workload import AttentionWorkload


def crash(*_: Any) -> float:
    os._exit(7)


def hang(*_: Any) -> float:
    time.sleep(600)
    return 0.0


def test_a_candidate_that_crashes_or_hangs_costs_only_itself(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(workers, "MEASURE_TIMEOUT", 1.0)
    with workers.LocalWorkers(1) as pool:
        pool._runner.schedule(abs, (1,)).result()  # so that only the task itself is timed
        assert pool._timed(crash, (), 30.0)[1].startswith("crashed")
        assert pool._timed(hang, (), 1.0) == (None, "timed out")
        assert pool._timed(abs, (-3,), 30.0) == (3, "")


def test_real_tuning_of_a_small_workload(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TVM_ATTENTION_CACHE_DIR", str(tmp_path / "cache"))
    result = tvm_attention.tune(WORKLOAD, trials=3, log=log_path(tmp_path))
    (outcome,) = result.outcomes
    assert outcome.trials == 3
    assert outcome.kept
    assert outcome.tuned is not None
    assert outcome.tuned > 0
    (record,) = read_log(log_path(tmp_path))
    assert record.provenance["trials"] == 3


@pytest.mark.parametrize(
    "fields",
    [
        {"paged": True, "ragged": True, "kv_dtype": "int8", "causal": "bottom_right"},
        {"ragged": True, "mask": "float32", "mask_dense": True, "output": "attention_and_lse"},
    ],
    ids=lambda x: " ".join(x),
)
def test_real_tuning_of_stored_and_ragged_keys(
    fields: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TVM_ATTENTION_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("TVM_ATTENTION_LOG_DIR", str(tmp_path))
    lengths = {"query_length": 20, "key_length": 40}
    workload = AttentionWorkload(head_dim=16, batch=2, query_heads=2, **(lengths | fields))
    failures: dict[str, int] = {}
    result = tvm_attention.tune(
        workload, trials=3, log=log_path(tmp_path), progress=lambda p: failures.update(p.failures)
    )
    assert failures == {}
    (record,) = read_log(log_path(tmp_path))
    assert result.records == (record,)
    assert record.workload == workload
    assert tvm_attention.explain(workload).source.record == record


def test_a_wrong_kernel_is_refused() -> None:
    source = trials.build(WORKLOAD, TARGET, default())
    other = AttentionWorkload(
        head_dim=32, query_heads=2, query_length=48, key_length=40, causal=True
    )
    with pytest.raises(tvm_attention.TuningError, match="wrong result"):
        trials.measure(source, other, default(), 1, float("inf"))
