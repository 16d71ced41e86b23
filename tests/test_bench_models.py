"""The benchmark of whole encoders, on one small enough to time in a moment."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers", reason="the extra dev brings it")

import torch

from bench import bench_models

SMALL = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "image_size": 32}


def _small(batches: Any, scale: float = 1.0) -> Any:
    config = bench_models.ViTConfig(**SMALL, intermediate_size=32, attn_implementation="sdpa")
    models = bench_models.both(bench_models.ViTModel(config, add_pooling_layer=False).eval())
    models["tvm_attention"].layers[0].attention.scaling *= scale
    for batch in batches:
        yield "small", batch, models, {"pixel_values": torch.randn(batch, 3, 32, 32)}


def test_every_batch_is_compared_and_timed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(bench_models.CASES, "vit", _small)
    path = tmp_path / "m.json"
    options = ["--models", "vit", "--batches", "1", "3", "--seconds", "0.02", "--json", str(path)]
    assert bench_models.main(options) == 0
    cases = json.loads(path.read_text())["cases"]
    assert [c["batch"] for c in cases] == [1, 3]
    assert all(c["ratio"]["median"] > 0 and c["difference"] < 1e-4 for c in cases)
    assert "its time / ours" in capsys.readouterr().out


def test_models_that_differ_are_not_timed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(bench_models.CASES, "vit", lambda batches: _small(batches, scale=50.0))
    assert bench_models.main(["--models", "vit", "--batches", "1"]) == 1
    assert "small, batch 1: expected the results of both" in capsys.readouterr().err
