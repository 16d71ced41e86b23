"""logs verify: records are replayed and built, for targets that this machine is not, too."""

from __future__ import annotations

import json
import os
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from command_logs import SMALL, damage, legal_record, write_user_log
from tuning_records import DIGEST, machine

from tvm_attention import environment
from tvm_attention.__main__ import main
from tvm_attention.commands import logs, logs_verify
from tvm_attention.commands.logs_verify import build_all, build_record, recorded_target
from tvm_attention.database import TuningLog, TuningRecord, user_log_path
from tvm_attention.errors import InvalidValueError, KernelBuildError
from tvm_attention.target import features_of, named_target


@pytest.fixture(autouse=True)
def folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(environment.LOG_DIR, str(tmp_path / "logs"))


def _verify(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, dict[str, Any]]:
    status = main(["logs", "verify", "--json", *arguments])
    report: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert report["ok"] == (status == 0)
    return status, report


def test_records_that_hold(capsys: pytest.CaptureFixture[str]) -> None:
    decode = replace(SMALL, query_length=1, causal=None)
    write_user_log(legal_record("zen5"), legal_record("zen5", decode))
    assert main(["logs", "verify", "--user", "--target", "zen5"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line[:6] for line in lines[:2]] == ["ok    ", "ok    "]
    assert lines[2:] == ["2 of 2 records hold"]


def test_what_does_not_hold_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    good = legal_record()
    illegal = replace(good, decisions={**good.decisions, "query_block": 7}, threads=1)
    unknown = replace(good, variant="no_such_variant", threads=3)
    stale = replace(good, expression=DIGEST)
    write_user_log(good, illegal, unknown, stale)
    status, report = _verify(capsys, "--user", "--target", "x86-64-v3", "--jobs", "1")
    assert status == 1
    errors = {
        (r["record"]["threads"], r["record"]["expression"]): r["error"] for r in report["records"]
    }
    assert errors[2, good.expression] is None
    assert "query_block=7 is not one of" in errors[1, good.expression]
    assert "no_such_variant" in errors[3, good.expression]
    assert "expression changed" in errors[2, DIGEST]
    assert main(["logs", "verify", "--user"]) == 1
    assert "1 of 4 records hold" in capsys.readouterr().out


def test_no_record_does_not_hold(capsys: pytest.CaptureFixture[str]) -> None:
    write_user_log(legal_record("zen5"))
    assert main(["logs", "verify", "--user", "--target", "zen4"]) == 1
    assert capsys.readouterr().out == "no records\n"


def _build_nothing(record: TuningRecord) -> None:
    pass


def test_refused_log_does_not_hold(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(logs_verify, "build_record", _build_nothing)
    write_user_log(legal_record("zen4"))
    damage(user_log_path("zen4", "other"))
    status, report = _verify(capsys, "--user", "--target", "zen4")
    assert status == 1
    assert [r["error"] for r in report["records"]] == [None]
    assert "user zen4/other.jsonl" in report["refused"][0]
    path = tmp_path / "mine.jsonl"
    damage(path)
    status, report = _verify(capsys, "--log", str(path))
    assert (status, report["records"]) == (1, [])
    assert str(path) in report["refused"][0]


def test_shipped_logs_by_default(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shipped = TuningLog("shipped zen4/a.jsonl", False, (legal_record("zen4"),))
    monkeypatch.setattr(logs, "shipped_logs", lambda: (shipped,))
    monkeypatch.setattr(logs_verify, "build_record", _build_nothing)
    write_user_log(legal_record("zen4", threads=1))
    status, report = _verify(capsys, "--target", "zen4")
    assert status == 0
    assert [r["record"]["threads"] for r in report["records"]] == [2]


def _build_or_die(record: TuningRecord) -> None:
    if record.threads == 1:
        os.kill(os.getpid(), signal.SIGKILL)


def test_a_build_that_dies_is_one_failure() -> None:
    records = [legal_record(threads=n) for n in (2, 1, 3)]
    results = build_all(records, _build_or_die, jobs=1)
    assert [r for r, _ in results] == records
    errors = [error for _, error in results]
    assert (errors[0], errors[2]) == (None, None)
    assert "died" in str(errors[1])


def test_machine_code_is_generated(monkeypatch: pytest.MonkeyPatch) -> None:
    from tvm_attention import compiler

    asked = []

    class Module:
        @property
        def mod(self) -> Module:
            return self

        def inspect_source(self, form: str) -> str:
            asked.append(form)
            raise RuntimeError("cannot select")

    monkeypatch.setattr(compiler, "build_module", lambda *_: Module())
    with pytest.raises(KernelBuildError, match="no machine code for zen5: cannot select"):
        build_record(legal_record("zen5"))
    assert asked == ["asm"]


def test_recorded_target_is_the_machine_of_the_measurement() -> None:
    named = named_target("icelake")
    found = recorded_target(legal_record(machine("icelake", l2=512 << 10, features=named.features)))
    assert (found.name, found.isa, found.features) == ("icelake", named.isa, named.features)
    assert (found.l1d, found.l2, found.l3, found.cores) == (48 << 10, 512 << 10, 32 << 20, 2)
    # A virtual machine that hides AVX-512 runs the level below.
    hidden = recorded_target(legal_record(machine("icelake", isa="x86-64-v3")))
    assert (hidden.isa, hidden.features) == ("x86-64-v3", features_of("x86-64-v3"))
    unknown = replace(legal_record(), target="pentium")
    with pytest.raises(InvalidValueError, match="pentium"):
        recorded_target(unknown)
