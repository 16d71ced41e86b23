import importlib
import io
import json
import math
import re
import time
from dataclasses import replace

import numpy as np
import pytest
from rich.console import Console

import tvm_attention
from bench import bench_modelled, command, render, results
from bench.checking import ALLOWED, admit
from bench.measure import measure
from bench.peers import PEERS, absence, ours
from bench.peers.contract import Peer, Prepared
from bench.problem import Problem, aligned, heads_of_rows, rows_of_heads
from bench.report import markdown, print_report
from bench.results import OURS, Result, WorkloadResult
from bench.roofline import FMA_PEAK, READ_PEAK, Ceiling
from tvm_attention import reference
from tvm_attention.arrays import NumPyArrays
from tvm_attention.call import Call
from tvm_attention.commands import ending
from tvm_attention.errors import InvalidValueError, UnsupportedError
from tvm_attention.interleaved import Contender
from tvm_attention.operands import geometry
from tvm_attention.options import opened_options
from tvm_attention.suites import suite
from tvm_attention.work import kv_bytes
from tvm_attention.workload import AttentionWorkload

TINY = AttentionWorkload(head_dim=8, query_heads=2, query_length=20, key_length=24)
NO_OPTIONS = dict.fromkeys(
    ("mask", "causal", "window", "softcap", "alibi_slopes", "sinks", "kv_lengths")
)
TINY_DECODE = AttentionWorkload(
    head_dim=8, query_heads=4, kv_heads=2, query_length=1, key_length=24
)


def _entrant(error=0.0, name="stand-in"):
    """A contender that gives the reference's result plus an error in one place."""

    def prepare(problem, threads):
        inputs = (problem.query, problem.key, problem.value)
        right = reference.attention(*inputs, causal=problem.workload.causal).astype(np.float32)
        right[0, 0, 0, 0] += error
        return Prepared(Contender(name, lambda: None), lambda: (right,), source="default schedule")

    return prepare


def _unsupported(problem, threads):
    raise UnsupportedError("no such operator")


class _StandInRoofline:
    def fma_peak(self):
        return Ceiling(Contender(FMA_PEAK, lambda: None), 10)

    def read_peak(self, memory):
        return Ceiling(Contender(READ_PEAK, lambda: None), memory.nbytes)


def _workload(name, refused=None, **ratios):
    def entry(ratio):
        return {
            "seconds": {"median": 0.002 * ratio, "q1": 0.001, "q3": 0.003},
            "ratio": {"median": ratio, "q1": ratio - 0.1, "q3": ratio + 0.1},
            "rounds": 9,
            "max_error": 1e-7,
            "roundings": 0.2,
            "precision": "float32",
            "layout": "B,H,L,E",
        }

    return WorkloadResult(
        name=name,
        shape="1x2x3x4x5",
        workload=TINY.to_dict(),
        source="default schedule",
        measured={n: entry(r) for n, r in {OURS: 1.0, **ratios}.items()},
        refused=refused or {},
        ceilings={"limit": "fma", "ours": 285.0, "machine": 359.0, "fraction": 0.794},
    )


def _result(workloads, **fields):
    whole = {
        "schema": results.SCHEMA,
        "mode": "attention",
        "suite": "core",
        "date": "2026-11-29",
        "machine": {
            "model": "Some CPU",
            "target": "x86-64-v4",
            "micro_architecture": "icelake",
            "cores": 2,
            "l1d": 49152,
            "l2": 2**21,
            "l3": 0,
        },
        "library": {"commit": "0123456789abcdef", "changed": True},
        "packages": {"numpy": "2.4", "torch": "2.13"},
        "threads": 2,
        "pool": "openmp",
        "seconds_per_workload": 1.0,
        "absent": {"openvino": "not installed: openvino"},
        "workloads": workloads,
        "summary": results.summarise(workloads),
    }
    return Result(**{**whole, **fields})


def test_summary_is_the_geometric_mean_and_names_what_is_lost():
    workloads = [
        _workload("a", torch=2.0, numpy=8.0),
        _workload("b", torch=0.5, numpy=2.0),
        _workload("c", numpy=4.0),
    ]
    summary = results.summarise(workloads)
    assert summary["torch"] == {"geometric_mean": 1.0, "workloads": 2, "under_one": ["b"]}
    assert summary["numpy"]["geometric_mean"] == pytest.approx(4.0)
    assert summary["numpy"]["under_one"] == []
    # the best peer is torch on a and b, numpy on c
    assert summary["best peer"]["geometric_mean"] == pytest.approx((2.0 * 0.5 * 4.0) ** (1 / 3))
    assert summary["best peer"]["workloads"] == 3


def test_a_single_peer_is_not_summarised_twice():
    assert list(results.summarise([_workload("a", torch=2.0)])) == ["torch"]
    assert results.summarise([_workload("a")]) == {}


def test_markdown_has_figures_losses_and_reasons():
    text = markdown(
        _result(
            [
                _workload("a", torch=1.5, numpy=8.0),
                _workload("b", {"numpy": "wrong: error 1", "torch": "not supported: x"}),
                _workload("c", torch=0.5),
            ]
        )
    )
    lines = text.splitlines()
    assert "| workload | ours ms | torch | numpy | best peer | of the machine |" in lines
    assert (
        "| a (1x2x3x4x5) | 2 | **1.50** (1.40-1.60) | 8.00 (7.90-8.10) | 1.50 (torch) "
        "| 79% FMA (285 of 359 GFLOP/s) |" in lines
    )
    assert "| b (1x2x3x4x5) | 2 | - | wrong | - | 79% FMA (285 of 359 GFLOP/s) |" in lines
    assert "- torch / ours: geometric mean 0.87 over 2 workloads, 1 under 1.0: c" in lines
    assert "- openvino: absent, not installed: openvino" in lines
    assert "- numpy wrong: error 1 (b)" in lines
    assert "Some CPU (x86-64-v4), 2 cores, L1D 48 KiB, L2 2 MiB;" in text
    assert "commit 0123456789ab with changes" in text


def test_the_terminal_table_shows_the_same_figures():
    out = io.StringIO()
    print_report(_result([_workload("a", torch=1.5)]), Console(file=out, width=120))
    for expected in ("1.50", "1.40-1.60", "79% FMA", "285 of 359", "geometric mean 1.50", "absent"):
        assert expected in out.getvalue()


def test_a_wrong_result_of_ours_is_shown():
    workload = _workload("a")
    workload["measured"] = {}
    workload["refused"] = {OURS: "wrong: error nan"}
    assert results.wrong_results([workload]) == ["a"]
    assert "| a (1x2x3x4x5) | wrong |" in markdown(_result([workload]))


def test_a_result_survives_the_file(tmp_path, capsys):
    path = tmp_path / "new" / "r.json"
    result = _result([_workload("a", torch=1.5, numpy=8.0)])
    results.write(result, path)
    assert results.read(path) == result
    assert render.main([str(path)]) == 0
    assert capsys.readouterr().out == markdown(result)


def test_a_nan_is_not_written(tmp_path):
    with pytest.raises(ValueError, match="not JSON compliant"):
        results.write(_result([_workload("a", torch=math.nan)], summary={}), tmp_path / "r.json")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("{", "expected a benchmark result"),
        ("[]", "expected schema 1, got None"),
        ('{"schema": 2}', "expected schema 1, got 2"),
        ('{"schema": 1, "mode": "mixed"}', "expected the fields absent, date"),
    ],
)
def test_a_foreign_file_is_refused(tmp_path, capsys, text, reason):
    path = tmp_path / "r.json"
    path.write_text(text)
    with pytest.raises(InvalidValueError, match=reason):
        results.read(path)
    assert render.main([str(path)]) == 2
    assert reason in capsys.readouterr().err


def test_an_absent_peer_is_named_with_the_reason(monkeypatch):
    absent = Peer("other", ("numpy", "no_such_package_here"), _unsupported)
    assert absence(absent) == "not installed: no_such_package_here"
    monkeypatch.setitem(PEERS, "other", absent)
    assert command.chosen_peers(["other"]) == ([], {"other": absence(absent)})


def test_only_right_answers_are_admitted():
    entrants = {
        OURS: _entrant(),
        "close": _entrant(error=1e-5),
        "wrong": _entrant(error=1e-2),
        "nan": _entrant(error=math.nan),
        "unable": _unsupported,
    }
    found = admit(Problem.of(TINY), entrants, threads=1)
    assert list(found.prepared) == [OURS, "close"]
    assert found.checked["close"].accuracy.max_error == pytest.approx(1e-5, rel=0.1)
    assert found.refused["unable"] == "not supported: no such operator"
    assert found.refused["wrong"].startswith("wrong: error 0.01")
    assert found.refused["nan"].startswith("wrong: error nan")


def test_ours_is_held_to_the_stricter_bound():
    found = admit(Problem.of(TINY), {OURS: _entrant(error=1e-5)}, threads=1)
    assert found.refused[OURS].startswith("wrong")


@pytest.mark.parametrize("precision", ALLOWED)
def test_zeros_are_wrong_in_every_format(precision):
    """Of many keys results are small, so that a bound by the values' range would let zeros pass."""
    workload = AttentionWorkload(head_dim=8, query_heads=1, query_length=4, key_length=4096)
    zeros = Prepared(
        Contender("zeros", lambda: None),
        lambda: (np.zeros((1, 1, 4, 8), np.float32),),
        precision=precision,
    )
    found = admit(Problem.of(workload), {"zeros": lambda *_: zeros}, threads=1)
    assert found.refused["zeros"].startswith("wrong")


def test_a_slow_peer_is_not_waited_for(monkeypatch):
    def slow(problem, threads):
        prepared = _entrant(name="slow")(problem, threads)
        calls.append(1)
        return replace(prepared, contender=Contender("slow", lambda: time.sleep(0.02)))

    calls = []
    monkeypatch.setattr("bench.measure.PATIENT_SECONDS", 0.01)
    peers = {"slow": Peer("slow", (), slow)}
    entry = measure("tiny", TINY, peers, _StandInRoofline(), 1, 0.05, _entrant(name=OURS))
    assert calls
    assert list(entry["measured"]) == [OURS]
    assert re.fullmatch(r"slow: 0\.0\d+ s a call", entry["refused"]["slow"])


@pytest.mark.parametrize(("workload", "limit"), [(TINY, "fma"), (TINY_DECODE, "read")])
def test_a_measured_workload_can_be_written(workload, limit):
    peers = {
        "peer": Peer("peer", (), _entrant(name="peer")),
        "unable": Peer("unable", (), _unsupported),
    }
    entry = measure("tiny", workload, peers, _StandInRoofline(), 1, 0.05, _entrant(name=OURS))
    assert entry.keys() == WorkloadResult.__required_keys__ | {"best_peer"}
    assert entry["best_peer"] == "peer"
    assert list(entry["measured"]) == [OURS, "peer"]
    assert entry["measured"][OURS]["ratio"] == {"median": 1.0, "q1": 1.0, "q3": 1.0}
    assert entry["measured"]["peer"]["rounds"] >= 5
    assert entry["refused"] == {"unable": "not supported: no such operator"}
    assert entry["source"] == "default schedule"
    assert entry["ceilings"]["limit"] == limit
    assert entry["ceilings"]["fraction"] > 0
    json.dumps(entry, allow_nan=False)


def test_a_wrong_result_of_ours_is_not_timed():
    entry = measure("tiny", TINY, {}, _StandInRoofline(), 1, 0.05, _entrant(error=1.0))
    assert entry["measured"] == {}
    assert entry["ceilings"] is None
    assert entry["refused"][OURS].startswith("wrong")


VARIED = {
    "plain": TINY,
    "decode": TINY_DECODE,
    "causal": AttentionWorkload(head_dim=8, causal=True, query_length=9, key_length=9),
    "bool": replace(TINY, mask="bool", mask_dense=True),
    "additive": replace(TINY, mask="float32", mask_dense=True),
    "padding": replace(TINY, batch=2, mask="bool", mask_per_key=True),
    "lengths": replace(TINY, batch=2, ragged=True),
    "window": AttentionWorkload(
        head_dim=8, causal=True, query_length=20, key_length=20, window=(3, -1)
    ),
    "bfloat16": replace(TINY, dtype="bfloat16"),
    "float16": replace(TINY, dtype="float16"),
    "int8": replace(TINY_DECODE, head_dim=32, value_dim=32, kv_dtype="int8"),
}


@pytest.mark.parametrize("name", [OURS, *(n for n in PEERS if n != "flex")])
def test_peers_are_right_on_what_they_compute(name):
    """flex compiles C++ for each: `bench_attention.py` holds it to the same before it is timed."""
    if name != OURS and absence(PEERS[name]):
        pytest.skip(absence(PEERS[name]))
    prepare = ours.prepare if name == OURS else PEERS[name].prepare
    kinds = ("decode", "bool", "lengths", "int8") if name == OURS else VARIED  # one kernel each
    served = set()
    for kind in kinds:
        workload = VARIED[kind]
        found = admit(Problem.of(workload), {name: prepare}, threads=1)
        assert not [why for why in found.refused.values() if why.startswith("wrong")], kind
        if found.prepared:
            found.prepared[name].contender.call()
            served.add(kind)
    if name in (OURS, "torch"):
        assert served == set(kinds)
    elif not name.startswith("torch-"):  # where torch chooses that itself
        assert served


@pytest.mark.parametrize("name", ["core", "decode", "masked", "lowprec", "long"])
def test_problems_are_calls_of_their_workloads(name):
    """A mask that is laid out otherwise, say, would be served by another kernel than is named."""
    for workload in suite(name).values():
        small = replace(
            workload,
            query_length=min(workload.query_length, 24),
            key_length=min(workload.key_length, 32),
            query_heads=workload.group,
            kv_heads=1,
        )
        problem = Problem.of(small)
        inputs = (problem.query, problem.key, problem.value)
        if small.kv_dtype is None:
            sizes = geometry(*(x.shape for x in inputs), enable_gqa=True)
            options = opened_options(
                NumPyArrays(), sizes, query_dtype=small.dtype, scale=None,
                **{**NO_OPTIONS, **problem.options},
            )  # fmt: skip
            call = Call.of(sizes, options, small.dtype)
            assert call.workload().kernel_features == small.kernel_features
        assert problem.key_value.nbytes == kv_bytes(small)


def test_a_mask_is_all_that_hides_keys_but_what_is_left_out():
    workload = replace(VARIED["window"], mask="bool", mask_dense=True)
    problem = Problem.of(workload)
    causal, window = np.tril(np.ones((20, 20), bool)), np.triu(np.ones((20, 20), bool), -3)
    np.testing.assert_array_equal(
        np.broadcast_to(problem.mask(), problem.scores),
        np.broadcast_to(problem.options["mask"] & causal & window, problem.scores),
    )
    rest = problem.mask(natively={"causal", "window"})
    np.testing.assert_array_equal(rest, problem.options["mask"])
    assert Problem.of(TINY).mask() is None
    assert Problem.of(VARIED["causal"]).mask(natively={"causal"}) is None


def test_a_problem_is_aligned_and_key_and_value_are_neighbours():
    problem = Problem.of(TINY_DECODE)
    for array in (problem.query, problem.key, problem.key_value):
        assert array.ctypes.data % 64 == 0
    assert problem.key_value.nbytes == kv_bytes(TINY_DECODE)
    assert np.shares_memory(problem.key, problem.key_value)
    assert np.shares_memory(problem.value, problem.key_value)
    assert not np.isnan(problem.key_value).any()
    assert np.isnan(aligned((3, 5))).all()


def test_rows_and_heads_are_the_same_numbers():
    query = Problem.of(TINY).query
    assert rows_of_heads(query).shape == (1, 20, 16)
    np.testing.assert_array_equal(heads_of_rows(rows_of_heads(query), 2), query)


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


def test_an_older_result_stays_until_there_is_a_new_one(tmp_path):
    path = tmp_path / "r.json"
    results.require_writable(path)
    assert not path.exists()
    path.write_text("old")
    results.require_writable(path)
    assert path.read_text() == "old"


def test_the_table_is_there_even_if_the_disk_is_full_meanwhile(monkeypatch, tmp_path, capsys):
    def full(*_):
        raise InvalidValueError("r.json: no space left")

    monkeypatch.setattr(command, "run", lambda *_: _result([_workload("a", torch=1.5)]))
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
    monkeypatch.setattr(command, "run", lambda *_: _result([_workload("a", torch=1.5)]))
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


def test_no_name_is_cut_on_a_narrow_terminal():
    out = io.StringIO()
    name = "a-workload-of-a-very-long-name-indeed"
    print_report(_result([_workload(name, torch=1.5, numpy=8.0)]), Console(file=out, width=50))
    assert "…" not in out.getvalue()
    rows = [line for line in out.getvalue().splitlines() if line.startswith("│")]
    assert name in "".join(line.split("│")[1].strip() for line in rows)


def test_the_command_measures_checks_and_writes(monkeypatch, tmp_path, capsys):
    torch = pytest.importorskip("torch")
    threads = torch.get_num_threads()
    monkeypatch.setattr(command, "suite", lambda name: {"tiny": TINY})
    monkeypatch.setattr(command, "Roofline", lambda threads: _StandInRoofline())
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


def test_modelled_against_measured():
    drawn = {"name": "a", "kind": "drawn", "error": "", "variant": "x", "decisions": {}}
    times = ((1.0, 2.0), (2.0, 3.0), (3.0, 5.0), (4.0, 4.0))
    rows = [{**drawn, "modelled": m, "measured": t} for m, t in times]
    rows.append({**drawn, "modelled": None, "error": "no"})
    [found] = bench_modelled._random_summary(rows)["workloads"]
    assert (found["candidates"], found["not_modelled"], found["lost_by_first"]) == (4, 1, 0)
    assert found["rank_correlation"] == pytest.approx(0.8)
    ratios = {"shipped": 1.0, "default": 1.1, "model": 1.21, "record": 1.1}
    rows = [
        {"name": name, "kind": kind, "modelled": 1.0, "measured": r, "ratio": r}
        for name in ("a", "b")
        for kind, r in ratios.items()
    ]
    summary = bench_modelled._search_summary(rows)
    assert summary["mean_lost"] == pytest.approx(0.21)
    assert summary["mean_lost_by_record"] == pytest.approx(0.1)
    assert [w["name"] for w in summary["workloads"]] == ["a", "b"]
