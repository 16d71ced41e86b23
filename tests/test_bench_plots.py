"""Pictures of results: of everyone who was timed, as files and in the documentation."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("matplotlib", reason="the extra dev brings it")

from bench import documentation, plots, results
from bench.results import OURS, Result
from tvm_attention.suites import shape_text, suite


def _result(name: str, **ratios: float) -> Result:
    """A result of a suite in which everyone has these times."""
    rows: list[Any] = []
    for workload, w in suite(name).items():
        spread = {"median": 1.0, "q1": 0.9, "q3": 1.1}
        measured = {
            n: {
                "seconds": {k: 1e-6 * w.key_length * r * x for k, x in spread.items()},
                "ratio": {k: r * x for k, x in spread.items()},
                "rounds": 5, "max_error": 0.0, "roundings": 0.0, "precision": w.dtype,
                "layout": "B,H,L,E",
            }
            for n, r in {OURS: 1.0, **ratios}.items()
        }  # fmt: skip
        ceilings = {"limit": "read", "ours": 40.0, "machine": 50.0, "fraction": 0.8}
        rows.append({
            "name": workload, "shape": shape_text(w), "workload": w.to_dict(), "source": "",
            "measured": measured, "refused": {}, "ceilings": ceilings,
        })  # fmt: skip
    machine = {
        "model": "Some CPU", "target": "x86-64-v4", "micro_architecture": "", "cores": 2, "l1d": 1,
        "l2": 1, "l3": 1,
    }  # fmt: skip
    return Result(
        schema=results.SCHEMA, mode="attention", suite=name, date="2026-11-30", machine=machine,
        library={"commit": "0" * 40, "changed": False}, packages={}, threads=2, pool="openmp",
        seconds_per_workload=1.0, absent={}, workloads=rows, summary=results.summarise(rows),
        by_kind=results.by_kind(rows),
    )  # fmt: skip


def test_a_result_is_drawn_with_a_panel_for_each_dtype(tmp_path: Path) -> None:
    path = tmp_path / "decode.json"
    results.write(_result("decode", torch=2.0, jax=4.0), path)
    assert plots.main([str(path), "--into", str(tmp_path / "drawn"), "--png"]) == 0
    drawn = sorted(p.name for p in (tmp_path / "drawn").iterdir())
    assert drawn == [f"decode-{n}.{e}" for n in ("lengths", "shares") for e in ("png", "svg")]
    lengths = (tmp_path / "drawn" / "decode-lengths.svg").read_text()
    for text in ("ours", "torch", "jax", *(f"decoding, {d}" for d in ("float32", "int8"))):
        assert f">{text}</text>" in lengths
    shares = (tmp_path / "drawn" / "decode-shares.svg").read_text()
    assert all(f">{name}, read</text>" in shares for name in suite("decode"))
    assert plots.main([str(tmp_path / "none.json"), "--into", str(tmp_path)]) == 2


def test_sections_of_the_suites_that_were_measured(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(documentation, "RESULTS", tmp_path)
    assert documentation.suites() == ""
    results.write(_result("decode", torch=0.5, jax=4.0), tmp_path / "decode.json")
    shown = documentation.suites()
    assert shown.startswith("### Decoding\n\n<div class='picture'><svg")
    assert "| decode-1-gqa4-f32 (1x32/8x1x1x128) |" in shown
    assert "- int8: best peer / ours: geometric mean 0.50" in shown
    for svg in re.findall(r"<svg.*?</svg>", shown, re.DOTALL):
        assert "\n\n" not in svg
