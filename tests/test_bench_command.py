"""The benchmark's command line: what it refuses, and that no result is lost."""

from __future__ import annotations

import importlib

import pytest
from benchmark_results import TINY, StandInRoofline, result_of, workload_result

import tvm_attention
from bench import command, results
from bench.results import OURS
from tvm_attention.commands import ending
from tvm_attention.errors import InvalidValueError


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--peers", "torch,abc"], "--peers: expected torch, torch-flash"),
        (["--only", "no-such"], "--only: expected names of suite core"),
        (["--mixed", "--suite", "decode"], "--mixed: expected workloads in float32"),
        (["--json", "/dev/null/r.json"], "/dev/null/r.json: expected a file that can be written"),
    ],
)
def test_bad_options_are_refused_in_one_line(capsys, arguments, reason):
    assert command.main(arguments) == 2
    said = capsys.readouterr().err
    assert reason in said
    assert said.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--threads", "0"], "--threads: expected a whole number from 1 to 4096"),
        (["--threads", "two"], "--threads: expected a whole number"),
        (["--seconds", "-1"], "--seconds: expected a positive number"),
        (["--seconds", "nan"], "--seconds: expected a positive number"),
        (["--suite", "none"], "invalid choice: 'none'"),
        (["--sec", "1"], "unknown option --sec, did you mean --seconds?"),
    ],
)
def test_usage_errors_take_one_line(capsys, arguments, reason):
    with pytest.raises(SystemExit) as stop:
        command.main(arguments)
    assert stop.value.code == 2
    said = capsys.readouterr().err
    assert reason in said
    assert said.count("\n") == 1


@pytest.mark.parametrize("name", ["bench_options"])
def test_the_other_benchmarks_refuse_alike(monkeypatch, tmp_path, capsys, name):
    pytest.importorskip("torch")
    program = importlib.import_module(f"bench.{name}")
    monkeypatch.setattr(program, "_measure", lambda *_: pytest.fail("measured"))
    monkeypatch.setattr(program.torch, "set_num_threads", lambda _: None)
    assert program.main(["--json", str(tmp_path)]) == 2
    assert "expected a file that can be written" in capsys.readouterr().err
    for arguments in (["--seconds", "-1"], ["--threads", "0"]):
        with pytest.raises(SystemExit) as stop:
            program.main(arguments)
        assert stop.value.code == 2
        assert "expected a" in capsys.readouterr().err


def test_a_file_that_cannot_be_written_costs_no_measurement(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(command, "run", lambda *_: pytest.fail("measured"))
    (tmp_path / "file").touch()
    assert command.main(["--json", str(tmp_path / "file" / "r.json")]) == 2
    assert command.main(["--json", str(tmp_path)]) == 2


def test_the_table_is_there_even_if_the_disk_is_full_meanwhile(monkeypatch, tmp_path, capsys):
    def full(*_):
        raise InvalidValueError("r.json: no space left")

    monkeypatch.setattr(command, "run", lambda *_: result_of([workload_result("a", torch=1.5)]))
    monkeypatch.setattr(results, "write", full)
    assert command.main(["--json", str(tmp_path / "r.json")]) == 2
    captured = capsys.readouterr()
    assert "geometric mean 1.50" in captured.out
    assert captured.err == "bench: r.json: no space left\n"


@pytest.mark.parametrize(
    ("error", "status", "said"),
    [
        (OSError(28, "No space left on device"), 2, "[Errno 28] No space left on device"),
        (BrokenPipeError(32, "Broken pipe"), 141, "the output was closed before its end"),
    ],
)
def test_the_file_is_there_even_if_nobody_reads_the_table(
    monkeypatch, tmp_path, capsys, error, status, said
):
    def fails(*_):
        raise error

    path = tmp_path / "r.json"
    monkeypatch.setattr(command, "run", lambda *_: result_of([workload_result("a", torch=1.5)]))
    monkeypatch.setattr(command, "print_report", fails)
    monkeypatch.setattr(ending, "give_up_output", lambda: None)  # it would take pytest's as well
    assert command.main(["--json", str(path)]) == status
    assert capsys.readouterr().err == f"bench: {said}\n"
    assert results.read(path)["workloads"][0]["name"] == "a"


def test_an_interrupt_takes_one_line(monkeypatch, capsys):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(command, "run", interrupted)
    assert command.main([]) == 130
    assert capsys.readouterr().err == "bench: interrupted\n"


def test_the_command_measures_checks_and_writes(monkeypatch, tmp_path, capsys):
    torch = pytest.importorskip("torch")
    threads = torch.get_num_threads()
    monkeypatch.setattr(command, "suite", lambda name: {"tiny": TINY})
    monkeypatch.setattr(command, "Roofline", lambda threads: StandInRoofline())
    path = tmp_path / "r.json"
    options = ["--peers", "torch", "--threads", "1", "--seconds", "0.05", "--json", str(path)]
    try:
        assert command.main(options) == 0
        assert command.main([*options, "--mixed"]) == 0
    finally:
        torch.set_num_threads(threads)
        command.launcher().set_num_threads(None)
    assert "torch / ours: geometric mean" in capsys.readouterr().out
    result = results.read(path)
    assert result["mode"] == "mixed"
    assert result["workloads"][0]["source"]
    assert result["packages"]["torch"] == torch.__version__
    assert set(result["workloads"][0]["measured"]) == {OURS, "torch"}
    assert hasattr(tvm_attention, "load")
