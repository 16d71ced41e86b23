"""The command line: the tree, bad arguments, errors and exit statuses."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

import tvm_attention
from tvm_attention.__main__ import main
from tvm_attention.commands import explain
from tvm_attention.errors import KernelBuildError

COMMANDS = ("info", "demo", "tune", "explain", "logs", "doctor")


def _python(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *arguments], capture_output=True, text=True, check=False)


def test_help_lists_commands_and_exit_statuses(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["--help"])
    assert stop.value.code == 0
    text = capsys.readouterr().out
    for expected in (*COMMANDS, "exit status", "130  interrupted"):
        assert expected in text


@pytest.mark.parametrize(
    "command", [*((c,) for c in COMMANDS), *(("logs", c) for c in ("list", "verify", "merge"))]
)
def test_help_of_each_command(command: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main([*command, "--help"])
    assert stop.value.code == 0
    assert f"usage: tvm-attention {' '.join(command)}" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "COMMAND"),
        (["tunes"], "'tunes'"),
        (["info", "--jsn"], "--jsn"),
        (["explain"], "--workload --suite"),
        (["explain", "--suite", "none"], "'none'"),
        (["explain", "--suite", "demo", "--workload", "head_dim=64"], "not allowed with"),
        (["tune", "--suite", "demo", "--trials", "0"], "from 1 to"),
        (["tune", "--suite", "demo", "--trials", "9" * 5000], "from 1 to"),
        (["tune", "--suite", "demo", "--minutes", "nan"], "positive number"),
        (["tune", "--suite", "demo", "--minutes", "-1"], "positive number"),
        (["tune", "--suite", "demo", "--threads", "two"], "whole number"),
        (["logs"], "COMMAND"),
        (["logs", "merge", "a.jsonl"], "--into"),
        (["logs", "prune", "--log", "a.jsonl", "--target", "zen4"], "not allowed with"),
    ],
)
def test_bad_arguments_take_one_line(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stop:
        main(arguments)
    assert stop.value.code == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    assert said in captured.err
    assert "--help" in captured.err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["explain", "--workload", "head_dim=0"], "head_dim: expected 1 to 512, got 0"),
        (["explain", "--workload", "head_dim"], "expected name=value"),
        (["explain", "--workload", "head_dim=64,color=red"], "color"),
        (["explain", "--workload", "head_dim=64,dtype=int8"], "dtype"),
        (["explain", "--workload", "head_dim=64", "--target", "pentium"], "pentium"),
        (["demo", "--workload", "head_dim=64,head_dim=64"], "twice"),
        (["tune", "--workload", "key_length=64"], "head_dim"),
        (["logs", "list", "--target", "../x"], "../x"),
        (["logs", "list", "--log", "/nowhere/a.jsonl"], "/nowhere/a.jsonl"),
        (["logs", "verify", "--log", "/nowhere/a.jsonl"], "/nowhere/a.jsonl"),
    ],
)
def test_errors_take_one_line(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    assert captured.err.startswith("tvm-attention: ")
    assert said in captured.err


def _explain_raises(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> int:
    def fail(*_: Any) -> None:
        raise error

    monkeypatch.setattr(explain, "explain", fail)
    return main(["explain", "--workload", "head_dim=64"])


def test_long_error_is_one_line_with_both_ends(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    error = KernelBuildError("could not build:\n" + "  deep in LLVM\n" * 1000 + "run the doctor")
    assert _explain_raises(monkeypatch, error) == 2
    line = capsys.readouterr().err
    assert line.count("\n") == 1
    assert len(line) < 2100
    assert line.startswith("tvm-attention: could not build: deep in LLVM")
    assert line.endswith("run the doctor\n")


def test_interrupt(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert _explain_raises(monkeypatch, KeyboardInterrupt()) == 130
    assert capsys.readouterr().err == "tvm-attention: interrupted\n"


def test_a_fault_of_ours_keeps_its_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ZeroDivisionError):
        _explain_raises(monkeypatch, ZeroDivisionError())


def test_module_is_the_command_line() -> None:
    done = _python("-m", "tvm_attention", "--version")
    assert (done.returncode, done.stdout) == (0, f"{tvm_attention.__version__}\n")
    bad = _python("-m", "tvm_attention", "explain", "--workload", "head_dim=x")
    assert bad.returncode == 2
    assert "Traceback" not in bad.stderr
    assert "head_dim" in bad.stderr


def test_argument_tree_imports_nothing_slow() -> None:
    slow = {"tvm", "tvm_ffi", "torch", "xgboost"}
    code = (
        "import sys; from tvm_attention.__main__ import parser; parser();"
        f"print(sorted({slow!r} & set(sys.modules)))"
    )
    done = _python("-c", code)
    assert (done.returncode, done.stdout) == (0, "[]\n"), done.stderr
