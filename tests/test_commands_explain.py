"""explain: the record taken and the reasons, here and for other targets."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from command_logs import SMALL, legal_record, write_user_log

from tvm_attention import environment, runtime
from tvm_attention.__main__ import main
from tvm_attention.commands.explain import explained_target
from tvm_attention.errors import InvalidValueError
from tvm_attention.suites import suite
from tvm_attention.target import LEVELS, detect_target, named_target

TEXT = "head_dim=16,query_heads=2,query_length=64,key_length=64"


@pytest.fixture(autouse=True)
def folders(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    monkeypatch.setenv(environment.LOG_DIR, str(tmp_path / "logs"))
    monkeypatch.delenv(environment.TARGET, raising=False)
    runtime.forget_kernels()
    yield
    runtime.forget_kernels()


def _json(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    assert main(["explain", "--json", *arguments]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_a_record_of_ones_own_is_taken(capsys: pytest.CaptureFixture[str]) -> None:
    host = detect_target()
    record = legal_record(host)
    write_user_log(record)
    (found,) = _json(capsys, "--workload", TEXT).values()
    assert found["taken"] == "tuned"
    assert found["record"] == record.to_dict()
    assert found == runtime.explain(SMALL).to_dict()
    assert main(["explain", "--workload", TEXT]) == 0
    text = capsys.readouterr().out
    assert f"target: {host.name}" in text
    assert "taken: tuned (exact machine)" in text


def test_suite_by_name(capsys: pytest.CaptureFixture[str]) -> None:
    found = _json(capsys, "--suite", "demo")
    assert list(found) == list(suite("demo"))


def test_a_target_this_machine_is_not(capsys: pytest.CaptureFixture[str]) -> None:
    write_user_log(legal_record("zen5"))
    (found,) = _json(capsys, "--workload", TEXT, "--target", "zen5").values()
    assert found["target"] == "zen5"
    assert found["taken"] == "tuned"


def test_explained_target(monkeypatch: pytest.MonkeyPatch) -> None:
    host = detect_target()
    level = LEVELS[host.kind][0]
    assert explained_target(None) == host
    assert explained_target(level) == detect_target(level)
    assert explained_target(level).l2 == host.l2
    foreign = next(
        name for name in ("zen5", "sapphirerapids", "cortex_a72")
        if not named_target(name).features <= host.features
    )  # fmt: skip
    assert explained_target(foreign) == named_target(foreign)
    monkeypatch.setenv(environment.TARGET, level)
    assert explained_target(None).name == level
    with pytest.raises(InvalidValueError, match="pentium"):
        explained_target("pentium")
