"""Results of the benchmark: summaries, tables, and the files they are kept in."""

from __future__ import annotations

import io
import math

import pytest
from benchmark_results import result_of, workload_result
from rich.console import Console

from bench import render, results
from bench.report import markdown, print_report
from bench.results import OURS
from tvm_attention.errors import InvalidValueError


def test_summary_is_the_geometric_mean_and_names_what_is_lost():
    workloads = [
        workload_result("a", torch=2.0, numpy=8.0),
        workload_result("b", torch=0.5, numpy=2.0),
        workload_result("c", numpy=4.0),
    ]
    summary = results.summarise(workloads)
    assert summary["torch"] == {"geometric_mean": 1.0, "workloads": 2, "under_one": ["b"]}
    assert summary["numpy"]["geometric_mean"] == pytest.approx(4.0)
    assert summary["numpy"]["under_one"] == []
    # the best peer is torch on a and b, numpy on c
    assert summary["best peer"]["geometric_mean"] == pytest.approx((2.0 * 0.5 * 4.0) ** (1 / 3))
    assert summary["best peer"]["workloads"] == 3


def test_a_single_peer_is_not_summarised_twice():
    assert list(results.summarise([workload_result("a", torch=2.0)])) == ["torch"]
    assert results.summarise([workload_result("a")]) == {}


def test_markdown_has_figures_losses_and_reasons():
    text = markdown(
        result_of(
            [
                workload_result("a", torch=1.5, numpy=8.0),
                workload_result("b", {"numpy": "wrong: error 1", "torch": "not supported: x"}),
                workload_result("c", torch=0.5),
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
    print_report(result_of([workload_result("a", torch=1.5)]), Console(file=out, width=120))
    for expected in ("1.50", "1.40-1.60", "79% FMA", "285 of 359", "geometric mean 1.50", "absent"):
        assert expected in out.getvalue()


def test_a_wrong_result_of_ours_is_shown():
    workload = workload_result("a")
    workload["measured"] = {}
    workload["refused"] = {OURS: "wrong: error nan"}
    assert results.wrong_results([workload]) == ["a"]
    assert "| a (1x2x3x4x5) | wrong |" in markdown(result_of([workload]))


def test_a_result_survives_the_file(tmp_path, capsys):
    path = tmp_path / "new" / "r.json"
    result = result_of([workload_result("a", torch=1.5, numpy=8.0)])
    results.write(result, path)
    assert results.read(path) == result
    assert render.main([str(path)]) == 0
    assert capsys.readouterr().out == markdown(result)


def test_a_nan_is_not_written(tmp_path):
    with pytest.raises(ValueError, match="not JSON compliant"):
        results.write(
            result_of([workload_result("a", torch=math.nan)], summary={}), tmp_path / "r.json"
        )


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


def test_an_older_result_stays_until_there_is_a_new_one(tmp_path):
    path = tmp_path / "r.json"
    results.require_writable(path)
    assert not path.exists()
    path.write_text("old")
    results.require_writable(path)
    assert path.read_text() == "old"


def test_no_name_is_cut_on_a_narrow_terminal():
    out = io.StringIO()
    name = "a-workload-of-a-very-long-name-indeed"
    print_report(
        result_of([workload_result(name, torch=1.5, numpy=8.0)]), Console(file=out, width=50)
    )
    assert "…" not in out.getvalue()
    rows = [line for line in out.getvalue().splitlines() if line.startswith("│")]
    assert name in "".join(line.split("│")[1].strip() for line in rows)
