"""The command line: the tree, bad arguments, errors and exit statuses."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest

import tvm_attention
from tvm_attention.__main__ import main, parser
from tvm_attention.commands import explain
from tvm_attention.errors import InvalidValueError, KernelBuildError, TuningLogWarning

COMMANDS = (
    "info", "demo", "tune", "serve", "tracker", "explain", "report", "export", "logs", "doctor", "completion",
)  # fmt: skip


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


def _leaves(parser: Any, name: str = "") -> dict[str, Any]:
    """All commands that do something, by their whole name."""
    below = [a for a in parser._actions if isinstance(a, argparse._SubParsersAction)]
    if not below:
        return {name: parser}
    (own,) = below
    return {
        key: leaf
        for word, child in own.choices.items()
        for key, leaf in _leaves(child, f"{name} {word}".strip()).items()
    }


def test_every_command_takes_json_and_documents_its_exit_statuses() -> None:
    leaves = _leaves(parser())
    assert {"logs verify", "tune", "report"} <= leaves.keys()
    for name, leaf in leaves.items():
        text = leaf.format_help()
        assert "exit status:" in text, name
        assert ("--json" in text) == (name != "completion"), name


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "COMMAND"),
        (["tunes"], "'tunes'"),
        (["info", "--jsn"], "unknown option --jsn, did you mean --json?"),
        (["explain", "--work", "head_dim=64"], "unknown option --work, did you mean --workload?"),
        (["explain", "--work=head_dim=64"], "did you mean --workload?"),
        (["explain", "--workload", "head_dim=64", "--causa"], "unknown option --causa;"),
        (["explain"], "--workload --suite"),
        (["explain", "--suite", "none"], "'none'"),
        (["explain", "--suite", "demo", "--workload", "head_dim=64"], "not allowed with"),
        (["tune", "--suite", "demo", "--trials", "0"], "from 1 to"),
        (["tune", "--suite", "demo", "--trials", "9" * 5000], "from 1 to"),
        (["tune", "--suite", "demo", "--minutes", "nan"], "positive number"),
        (["tune", "--suite", "demo", "--minutes", "-1"], "positive number"),
        (["tune", "--suite", "demo", "--threads", "two"], "whole number"),
        (["serve"], "--key"),
        (["tracker", "--port", "70000"], "from 1 to"),
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
        (["serve", "--key", "a b"], "key: expected"),
        (["serve", "--key", "pi", "--cores", "99999"], "cores: expected some of"),
        (["serve", "--key", "pi", "--cores", "big"], "cores: expected some of"),
        (["serve", "--key", "pi", "--tracker", "laptop"], "expected HOST:PORT"),
        (["explain", "--workload", "head_dim=0"], "head_dim: expected 1 to 512, got 0"),
        (["explain", "--workload", "head_dim"], "expected name=value"),
        (["explain", "--workload", "head_dim=64,color=red"], "color"),
        (["explain", "--workload", "head_dim=64,dtype=int8"], "dtype"),
        (["explain", "--workload", "head_dim=64", "--target", "pentium"], "pentium"),
        (["demo", "--workload", f"head_dim=64,key_length={2**31 - 1},batch=9999"], "memory"),
        (["tune", "--workload", f"head_dim=64,key_length={2**31 - 1},batch=9999"], "memory"),
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


@pytest.mark.parametrize(
    ("error", "status", "said"),
    [
        (
            OSError(28, "No space left on device", "a.jsonl"),
            2,
            "No space left on device: 'a.jsonl'",
        ),
        (PermissionError(13, "Permission denied", "a.jsonl"), 2, "Permission denied: 'a.jsonl'"),
        (MemoryError("Unable to allocate 4 TiB"), 2, "out of memory: Unable to allocate 4 TiB"),
        (MemoryError(), 2, "out of memory"),
        (BrokenPipeError(32, "Broken pipe"), 141, "the output was closed before its end"),
    ],
)
def test_what_the_machine_lacks_takes_one_line(
    error: BaseException,
    status: int,
    said: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert _explain_raises(monkeypatch, error) == status
    line = capsys.readouterr().err
    assert line.startswith("tvm-attention: ")
    assert said in line
    assert line.count("\n") == 1


@pytest.mark.parametrize("command", [["logs", "list"], ["logs", "list", "--json"]])
def test_a_closed_pipe(command: list[str]) -> None:
    arguments = [sys.executable, "-m", "tvm_attention", *command]
    with subprocess.Popen(
        arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        said = process.stderr.read()
    assert process.returncode == 141
    assert said == "tvm-attention: the output was closed before its end\n"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full")
@pytest.mark.parametrize("command", [["logs", "list"], ["info", "--json"]])
def test_a_full_disk(command: list[str]) -> None:
    arguments = [sys.executable, "-m", "tvm_attention", *command]
    with open("/dev/full", "w") as full:
        done = subprocess.run(arguments, stdout=full, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 2
    assert done.stderr == "tvm-attention: [Errno 28] No space left on device\n"


def test_an_interrupt_while_modules_load(tmp_path: Path) -> None:
    (tmp_path / "numpy.py").write_text("raise KeyboardInterrupt\n")
    done = subprocess.run(
        [sys.executable, "-m", "tvm_attention", "info"],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
    )
    assert (done.returncode, done.stderr) == (130, "tvm-attention: interrupted\n")


def test_a_refused_log_is_a_warning_of_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def warn(*_: Any) -> Any:
        warnings.warn("user a/b.jsonl: line 3: bad", TuningLogWarning, stacklevel=2)
        warnings.warn("of another library", UserWarning, stacklevel=2)
        raise InvalidValueError("stop")

    monkeypatch.setattr(explain, "explain", warn)
    with pytest.warns(UserWarning, match="another"):
        assert main(["explain", "--workload", "head_dim=64"]) == 2
    warning, error = capsys.readouterr().err.splitlines()
    assert warning == "tvm-attention: warning: user a/b.jsonl: line 3: bad"
    assert error == "tvm-attention: stop"


@pytest.mark.parametrize("columns", ["60", "80", "120"])
def test_help_breaks_no_word(
    columns: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    with pytest.raises(SystemExit):
        main(["explain", "--help"])
    said = capsys.readouterr().out.split()
    for word in ("causal=none", "query_length=512,", "key_length=512,", "x86-64-v3,"):
        assert word in said


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
    slow = {"tvm", "tvm_ffi", "torch", "xgboost", "pebble"}
    code = (
        "import sys; from tvm_attention.__main__ import parser; parser();"
        f"print(sorted({slow!r} & set(sys.modules)))"
    )
    done = _python("-c", code)
    assert (done.returncode, done.stdout) == (0, "[]\n"), done.stderr


def test_characters_that_the_output_cannot_hold(tmp_path: Path) -> None:
    folder = tmp_path / "Ordner ä 中"
    variables = {"PYTHONIOENCODING": "ascii", "TVM_ATTENTION_LOG_DIR": str(folder)}
    done = subprocess.run(
        [sys.executable, "-m", "tvm_attention", "info"],
        capture_output=True,
        text=True,
        env={**os.environ, **variables},
    )
    assert done.returncode == 0, done.stderr
    assert r"\xe4 \u4e2d" in done.stdout.replace("\n", "")
