"""info: what it shows, also where something is wrong."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from command_logs import damage, legal_record, write_user_log

from tvm_attention import environment, threads
from tvm_attention.__main__ import main
from tvm_attention.commands import info
from tvm_attention.database import user_log_path
from tvm_attention.errors import KernelBuildError
from tvm_attention.target import detect_target


@pytest.fixture(autouse=True)
def folders(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(environment.CACHE_DIR, str(tmp_path / "kernels"))
    monkeypatch.setenv(environment.LOG_DIR, str(tmp_path / "logs"))
    for variable in (environment.CACHE_LIMIT_MB, environment.NUM_THREADS, environment.TARGET):
        monkeypatch.delenv(variable, raising=False)


def _json(capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    assert main(["info", "--json"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "kernels").mkdir()
    for name, size in (("a.ll", 10), ("b.ll", 20), ("other", 40)):
        (tmp_path / "kernels" / name).write_bytes(b" " * size)
    write_user_log(legal_record("zen4"), legal_record("zen4", threads=1))
    damage(user_log_path("icelake"))
    found = _json(capsys)
    host = detect_target()
    assert found["target"]["name"] == host.name
    assert found["target"]["features"] == sorted(host.features)
    assert found["versions"]["apache-tvm"].startswith("0.27")
    assert found["threads"]["count"] >= 1
    assert found["kernel_cache"] == {
        "directory": str(tmp_path / "kernels"),
        "kernels": 2,
        "size": 30,
        "limit": 512 << 20,
    }
    assert found["logs"]["directory"] == str(tmp_path / "logs")
    assert found["logs"]["user"]["records"] == {"zen4": 2}
    (refusal,) = found["logs"]["user"]["refused"]
    assert "icelake" in refusal
    assert found["logs"]["shipped"]["refused"] == []


def test_text(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_user_log(legal_record("zen4"))
    damage(user_log_path("icelake"))
    assert main(["info"]) == 0
    text = capsys.readouterr().out
    host = detect_target()
    for expected in (f"target {host.name} ({host.isa})", "0 kernels", "zen4 1 record ", "refused"):
        assert expected in text


def test_kernels_that_cannot_run_are_said_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail() -> None:
        raise KernelBuildError("no compiler library")

    monkeypatch.setattr(threads, "launcher", fail)
    found = _json(capsys)
    assert found["threads"]["count"] is None
    assert "no compiler library" in found["threads"]["pool"]
    assert main(["info"]) == 0
    assert "doctor" in capsys.readouterr().out


def test_the_smaller_edition_of_xgboost_counts(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    versions = {"xgboost-cpu": "3.1.0"}
    monkeypatch.setattr(info, "installed", versions.get)
    assert _json(capsys)["versions"]["xgboost"] == "3.1.0"
    versions.clear()
    assert _json(capsys)["versions"]["xgboost"] is None


@pytest.mark.parametrize("variable", [environment.CACHE_LIMIT_MB, environment.NUM_THREADS])
def test_bad_setting(
    variable: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(variable, "much")
    assert main(["info"]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert f"{variable}: expected" in captured.err
    assert "kernels cannot run" not in captured.err
