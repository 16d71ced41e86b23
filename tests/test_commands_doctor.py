"""doctor: the checks hold here, and each says what is wrong where something is."""

from __future__ import annotations

import importlib.util
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command_logs import damage, legal_record, write_user_log
from tuning_records import log

from tvm_attention import environment, runtime, threads
from tvm_attention.__main__ import main
from tvm_attention.commands import doctor, doctor_checks, doctor_child
from tvm_attention.commands.doctor_checks import Check, Finding
from tvm_attention.database import TuningLog, user_log_path
from tvm_attention.errors import KernelBuildError


@pytest.fixture(autouse=True)
def folders(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(environment.CACHE_DIR, str(tmp_path / "kernels"))
    monkeypatch.setenv(environment.LOG_DIR, str(tmp_path / "logs"))
    for variable in (environment.CACHE_LIMIT_MB, environment.NUM_THREADS, environment.TARGET):
        monkeypatch.delenv(variable, raising=False)


@pytest.fixture
def fake_package(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """Puts a package in front of the installed one in child processes."""
    folder = tmp_path / "packages"
    folder.mkdir()
    monkeypatch.setenv("PYTHONPATH", str(folder))

    def make(name: str, source: str) -> None:
        (folder / f"{name}.py").write_text(source, encoding="utf-8")

    return make


def test_everything_holds_here(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--json"]) == 0, "tvm-attention doctor says what is wrong"
    report = json.loads(capsys.readouterr().out)
    assert report["ok"] is True
    names = [check["name"].partition(" (")[0] for check in report["checks"]]
    with_torch = ["threads with torch"] if importlib.util.find_spec("torch") else []
    assert names == [
        *("settings", "hardware", "log round trip", "compiler", "threads", *with_torch),
        *("archives", "kernel cache", "your logs", "shipped logs", "xgboost"),
    ]
    assert all(check["ok"] and check["detail"] for check in report["checks"])


def _run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *findings: Finding
) -> tuple[int, str]:
    monkeypatch.setattr(doctor, "examine", lambda advance: iter(findings))
    return main(["doctor"]), capsys.readouterr().out


def test_a_failure_says_what_to_do(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    good = Finding("one", True, "fine", "")
    assert _run(monkeypatch, capsys, good) == (0, "ok    one: fine\n")
    bad = Finding("two", False, "broken", "mend it")
    status, text = _run(monkeypatch, capsys, bad, good)
    assert status == 1
    assert text == "FAIL  two: broken\n      what to do: mend it\nok    one: fine\n"


def test_a_child_that_crashes_is_a_finding(fake_package: Any) -> None:
    fake_package("tvm", "import os, signal\nos.kill(os.getpid(), signal.SIGSEGV)")
    found = doctor_checks._in_child("log_round_trip", "advice")("log round trip")
    assert found == Finding("log round trip", False, "the process died of SIGSEGV", "advice")


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("raise ImportError('no libgomp\\nanywhere')", "ImportError: no libgomp anywhere"),
        ("raise RuntimeError('built for another Python')", "built for another Python"),
        ("print('noise')\nimport os\nos._exit(3)", "exit status 3"),
        ("print('noise')\nraise OSError('bad file')", "OSError: bad file"),
    ],
)
def test_a_package_that_does_not_import(fake_package: Any, source: str, said: str) -> None:
    fake_package("xgboost", source)
    found = doctor_checks._in_child("xgboost", "advice")("xgboost")
    assert not found.ok
    assert said in found.detail
    assert "\n" not in found.detail


def test_a_child_that_hangs(fake_package: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_package("xgboost", "import time\ntime.sleep(600)")
    monkeypatch.setattr(doctor_checks, "CHILD_SECONDS", 0.5)
    found = doctor_checks._in_child("xgboost", "advice")("xgboost")
    assert (found.ok, found.detail) == (False, "not done after 0.5 s")


def _found(name: str, monkeypatch: pytest.MonkeyPatch) -> Finding:
    def no_child(check: str, advice: str) -> Check:
        return lambda name: Finding(name, True, "not looked at", "")

    monkeypatch.setattr(doctor_checks, "_in_child", no_child)
    return next(f for f in doctor_checks.examine() if f.name == name)


@pytest.mark.parametrize(
    ("variable", "value", "check"),
    [
        (environment.NUM_THREADS, "many", "settings"),
        (environment.CACHE_LIMIT_MB, "-1", "settings"),
        (environment.TARGET, "pentium", "hardware"),
    ],
)
def test_bad_settings(
    variable: str, value: str, check: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert _found(check, monkeypatch).ok
    monkeypatch.setenv(variable, value)
    found = _found(check, monkeypatch)
    assert not found.ok
    assert value in found.detail
    assert found.advice


def test_cache_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    found = _found("kernel cache", monkeypatch)
    assert found.ok
    assert list((tmp_path / "kernels").iterdir()) == []
    (tmp_path / "file").touch()
    monkeypatch.setenv(environment.CACHE_DIR, str(tmp_path / "file"))
    found = _found("kernel cache", monkeypatch)
    assert not found.ok
    assert environment.CACHE_DIR in found.advice


def test_user_logs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert _found("your logs", monkeypatch).ok
    write_user_log(legal_record("zen4"))
    assert _found("your logs", monkeypatch).detail.endswith(": 1 record")
    damage(user_log_path("zen5"))
    found = _found("your logs", monkeypatch)
    assert not found.ok
    assert "zen5/tuned.jsonl: line 2" in found.detail
    (tmp_path / "file").touch()
    monkeypatch.setenv(environment.LOG_DIR, str(tmp_path / "file"))
    assert "expected a folder" in _found("your logs", monkeypatch).detail


def test_no_shipped_logs_are_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    for none in ((), (log(),)):
        monkeypatch.setattr(doctor_checks, "shipped_logs", lambda found=none: found)
        found = _found("shipped logs", monkeypatch)
        assert not found.ok
        assert "got none" in found.detail
        assert "reinstall" in found.advice


def test_one_cause_is_said_once(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    cause = "X: expected a number, got 'many'"
    findings = [
        Finding("settings", False, f"{cause}; Y: expected another", "correct the variable"),
        Finding("compiler", False, cause, "reinstall TVM"),
        Finding("threads", False, "a cause of its own", "report it"),
    ]
    status, text = _run(monkeypatch, capsys, *findings)
    assert status == 1
    assert text.count(cause) == 1
    assert "FAIL  compiler: the same as settings\n      what to do: mend that first\n" in text
    assert "reinstall TVM" not in text
    assert "FAIL  threads: a cause of its own\n      what to do: report it\n" in text


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        (environment.NUM_THREADS, "many"),
        (environment.CACHE_LIMIT_MB, "-1"),
        (environment.TARGET, "pentium"),
    ],
)
def test_a_bad_setting_is_said_once_by_the_real_checks(
    variable: str, value: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(variable, value)
    assert main(["doctor"]) == 1
    text = capsys.readouterr().out
    assert text.count(f"'{value}'") == 1
    assert "reinstall" not in text
    assert "report it" not in text
    assert "compiler: the same as " in text


def test_no_xgboost_is_no_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "xgboost" else find_spec(name)
    )
    found = _found("xgboost", monkeypatch)
    assert found.ok
    assert "only tune needs it" in found.detail
    assert "pip install" in found.detail


def test_shipped_logs(monkeypatch: pytest.MonkeyPatch) -> None:
    damaged = TuningLog("shipped zen4/a.jsonl", False, (), "shipped zen4/a.jsonl: line 3: bad")
    monkeypatch.setattr(doctor_checks, "shipped_logs", lambda: (log(), damaged))
    found = _found("shipped logs", monkeypatch)
    assert (found.ok, found.detail) == (False, damaged.refusal)


class _Pool:
    name = "own pool"

    def __init__(self, count: int) -> None:
        self.count = count

    def max_threads(self) -> int:
        return self.count


@pytest.mark.parametrize(("count", "used", "ok"), [(2, 1, False), (2, 2, True), (1, 1, True)])
def test_threads(count: int, used: int, ok: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "launcher", lambda: _Pool(count))
    monkeypatch.setattr(doctor_child, "_threads_used", lambda _: used)
    if ok:
        assert doctor_child.threads().startswith(f"{count} on own pool")
        return
    with pytest.raises(KernelBuildError, match="ran on one thread"):
        doctor_child.threads()


def test_threads_of_their_own_next_to_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
    monkeypatch.setattr(threads, "launcher", lambda: _Pool(2))
    with pytest.raises(KernelBuildError, match="torch"):
        doctor_child.torch_threads()


@pytest.mark.parametrize("wrong", [np.nan, 1e-3])
def test_a_kernel_that_is_wrong(
    wrong: float, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    request.addfinalizer(runtime.forget_kernels)  # its folders are gone after the test
    load = runtime.load

    class Wrong:
        source = "a stand-in"

        def __init__(self, workload: Any) -> None:
            self.kernel = load(workload)

        def __call__(self, *inputs: Any) -> Any:
            result = self.kernel(*inputs)
            result[0, 1, 3, 4] += wrong
            return result

    monkeypatch.setattr(runtime, "load", Wrong)
    with pytest.raises(KernelBuildError, match="is off by"):
        doctor_child.kernel()
    assert not Path(os.environ[environment.CACHE_DIR]).exists()


def test_child_prints_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert doctor_child.main("xgboost") == 0
    assert capsys.readouterr().out.startswith("xgboost ")
