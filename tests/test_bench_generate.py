"""The benchmark of generation, on a model small enough to time in a moment."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers", reason="the extra dev brings it")

from bench import bench_generate

SMALL = [
    "--seconds",
    "0.02",
    "--contexts",
    "9",
    "20",
    "--tokens",
    "2",
    "--hidden",
    "256",
    "--layers",
    "1",
]


def test_every_phase_is_compared_and_timed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "generate.json"
    assert bench_generate.main([*SMALL, "--json", str(path)]) == 0
    written = json.loads(path.read_text())
    cases = [(case["phase"], case["context"]) for case in written["cases"]]
    assert cases == [(phase, n) for n in (9, 20) for phase in ("prefill", "step", "generate")]
    for case in written["cases"]:
        assert case["seconds"]["median"] > 0
        assert case["ratio"]["q1"] <= case["ratio"]["median"] <= case["ratio"]["q3"]
    assert written["model"]["hidden"] == 256
    said = capsys.readouterr().out
    assert all(phase in said for phase in bench_generate.PHASES)


def test_models_that_differ_are_not_timed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    real = bench_generate._models

    def differing(options: Any) -> Any:
        made = real(options)
        made["tvm_attention"].model.layers[0].self_attn.scaling *= 2
        return made

    monkeypatch.setattr(bench_generate, "_models", differing)
    assert bench_generate.main(SMALL) == 1
    assert "prefill of 9: expected the results of both" in capsys.readouterr().err


def test_bad_arguments(capsys: pytest.CaptureFixture[str]) -> None:
    assert bench_generate.main(["--hidden", "100"]) == 2
    assert "--hidden: expected a multiple of 256" in capsys.readouterr().err
