"""What would stop tuning later stops it at once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from fake_workers import WORKLOAD, FakeWorkers, faked, log_path

import tvm_attention
from tvm_attention.database import user_log_path
from tvm_attention.errors import InvalidTypeError, InvalidValueError
from tvm_attention.tuning import session
from tvm_attention.workload import AttentionWorkload


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> type[FakeWorkers]:
    return faked(monkeypatch, tmp_path)


@pytest.mark.parametrize(
    "broken", ["cache", "log", "folder", "damaged", "target", "limit", "memory"]
)
def test_what_would_stop_a_run_later_stops_it_at_once(
    broken: str, fake: type[FakeWorkers], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, workload = log_path(tmp_path), WORKLOAD
    (tmp_path / "file").touch()
    if broken == "cache":
        monkeypatch.setenv("TVM_ATTENTION_CACHE_DIR", str(tmp_path / "file"))
    elif broken == "log":
        log = tmp_path / "file" / "tuned.jsonl"
    elif broken == "folder":
        log = tmp_path
    elif broken == "damaged":
        log = tmp_path / "file"
    elif broken == "target":
        log = user_log_path("zen5")
    elif broken == "limit":
        monkeypatch.setenv("TVM_ATTENTION_CACHE_LIMIT_MB", "much")
    else:
        workload = AttentionWorkload(head_dim=512, query_heads=2**30, query_length=2**30)
    with pytest.raises(tvm_attention.AttentionError):
        tvm_attention.tune(workload, trials=4, log=log)
    assert fake.measured == 0
    assert list(tmp_path.rglob("*.jsonl")) == []


def test_without_xgboost_one_line_says_what_to_install(
    fake: type[FakeWorkers], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "find_spec", lambda name: None)
    with pytest.raises(tvm_attention.TuningError, match="pip install xgboost"):
        tvm_attention.tune(WORKLOAD, trials=4, log=log_path(tmp_path))


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"trials": 0}, InvalidValueError),
        ({"minutes": 0}, InvalidValueError),
        ({"minutes": float("nan")}, InvalidValueError),
        ({"num_threads": 0}, InvalidValueError),
        ({"num_threads": 1.5}, InvalidTypeError),
        ({"target": "x86-64-v9"}, InvalidValueError),
    ],
)
def test_bad_budget(arguments: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error, match="expected"):
        tvm_attention.tune(WORKLOAD, **arguments)
