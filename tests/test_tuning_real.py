"""Tuning with real workers: kernels are built, checked, timed and recorded."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from fake_workers import TARGET, WORKLOAD, default, log_path

import tvm_attention
from tvm_attention.database import read_log
from tvm_attention.tuning import trials
from tvm_attention.workload import AttentionWorkload

SHORT = AttentionWorkload(head_dim=16, batch=2, query_heads=2, query_length=20, key_length=40)
# Workloads whose calls have more than the three tensors.
STORED = replace(SHORT, paged=True, ragged=True, kv_dtype="int8", causal="bottom_right")
RAGGED = replace(SHORT, ragged=True, mask="float32", mask_dense=True, output="attention_and_lse")


def test_real_tuning_of_small_workloads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One search of all, as starting the workers takes longer than their work."""
    monkeypatch.setenv("TVM_ATTENTION_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("TVM_ATTENTION_LOG_DIR", str(tmp_path))
    workloads = [WORKLOAD, STORED, RAGGED]
    failures: dict[str, int] = {}
    result = tvm_attention.tune(
        workloads, trials=3, log=log_path(tmp_path), progress=lambda p: failures.update(p.failures)
    )
    assert failures == {}
    assert [outcome.workload for outcome in result.outcomes] == workloads
    for outcome in result.outcomes:
        assert outcome.trials == 3
        assert outcome.kept
        assert outcome.tuned is not None
        assert outcome.tuned > 0
    records = {record.workload: record for record in read_log(log_path(tmp_path))}
    assert sorted(result.records, key=str) == sorted(records.values(), key=str)
    for workload in workloads:
        assert records[workload].provenance["trials"] == 3
        assert tvm_attention.explain(workload).source.record == records[workload]


def test_a_wrong_kernel_is_refused() -> None:
    source = trials.build(WORKLOAD, TARGET, default())
    other = AttentionWorkload(
        head_dim=32, query_heads=2, query_length=48, key_length=40, causal=True
    )
    with pytest.raises(tvm_attention.TuningError, match="wrong result"):
        trials.measure(source, other, default(), 1, float("inf"))
