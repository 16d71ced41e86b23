"""Results of a form of their own as tables."""

from __future__ import annotations

from typing import Any

from bench import tables

SPREAD = {"median": 1.5e-6, "q1": 1.25e-6, "q3": 2.5e-6}
RESULT: dict[str, Any] = {
    "machine": {"model": "", "micro_architecture": "zen4", "target": "zen4"},
    "library": {"commit": "0123456789abcdef", "changed": True},
    "packages": {"torch": "2.13.0"},
    "threads": 2,
    "date": "2026-01-02",
}


def test_generate() -> None:
    row = {
        "phase": "step", "context": 512, "seconds": {"median": 0.012345},
        "ratio": {"median": 1.25, "q1": 1.2, "q3": 1.3},
    }  # fmt: skip
    long = {**row, "seconds": {"median": 1.6789}}
    model = {"layers": 4, "hidden": 256, "tokens": 16, "head_dim": 64, "group": 4}
    text = tables.generate({**RESULT, "model": model, "cases": [row, long]})
    assert "| step | 512 | 1679 | 1.25 (1.20-1.30) |" in text.splitlines()
    assert "| step | 512 | 12.3 | 1.25 (1.20-1.30) |" in text.splitlines()
    assert "zen4 (zen4), 2 threads, torch 2.13.0; commit 0123456789ab with changes" in text


def test_families() -> None:
    row = {
        "family": "gpt_oss", "phase": "step", "beside": "eager", "seconds": {"median": 0.012345},
        "ratio": {"median": 1.25, "q1": 1.2, "q3": 1.3},
    }  # fmt: skip
    text = tables.families({**RESULT, "context": 1000, "tokens": 16, "cases": [row]})
    assert "| gpt_oss | step | 12.3 | 1.25 (1.20-1.30) eager |" in text.splitlines()
    assert "prompts of 1000 tokens" in text


def test_operator() -> None:
    row = {"case": "plain", "direct": SPREAD, "overhead": {**SPREAD, "q1": -1e-7}}
    text = tables.operator({**RESULT, "shape": [1, 4, 16, 64], "cases": [row]})
    assert text.startswith("query, key and value of 1x4x16x64, float32; ")
    assert "| plain | 1.5 | 1.5 (-0.1-2.5) |" in text.splitlines()
