"""The benchmark of the families of models, on models small enough to time in a moment."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers", reason="the extra dev brings it")

from bench import bench_families, families
from bench.families import FAMILIES, Family

_WIDTH = {"hidden_size": 64, "num_attention_heads": 4, "intermediate_size": 32}
SMALL: dict[str, dict[str, Any]] = {
    "bert": _WIDTH,
    "gpt_oss": {**_WIDTH, "head_dim": 16, "sliding_window": 8},
    "whisper": {
        "d_model": 64, "encoder_attention_heads": 4, "decoder_attention_heads": 4,
        "encoder_ffn_dim": 32, "decoder_ffn_dim": 32,
    },
}  # fmt: skip
OPTIONS = ["--seconds", "0.02", "--context", "20", "--tokens", "2"]


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, shape in SMALL.items():
        family = FAMILIES[name]
        made = replace(family, shape={**family.shape, **shape})
        monkeypatch.setitem(FAMILIES, name, made)


def test_every_phase_of_a_family_is_compared_and_timed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "families.json"
    asked = ["--families", *SMALL, *OPTIONS, "--json", str(path)]
    assert bench_families.main(asked) == 0
    cases = json.loads(path.read_text())["cases"]
    generated = [(n, p) for n in list(SMALL)[1:] for p in ("prefill", "step", "generate")]
    assert [(c["family"], c["phase"]) for c in cases] == [("bert", "encode"), *generated]
    for case in cases:
        assert case["beside"] == ("eager" if case["family"] == "gpt_oss" else "sdpa")
        assert case["seconds"]["median"] > 0
        assert case["other"]["median"] > 0
        assert case["difference"] < 1e-4
    captured = capsys.readouterr()
    assert "its time / ours" in captured.out
    lines = captured.err.splitlines()
    assert len(lines) == len(cases)
    assert lines[0].startswith("1/7 bert encode: ")
    assert lines[-1].startswith("7/7 whisper generate: ")


def test_tokens_that_differ_are_not_timed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    real = bench_families.both

    def differing(model: Any) -> Any:
        made = real(model)
        last = made["tvm_attention"].lm_head.register_forward_hook
        last(lambda *call: call[2].roll(1, dims=-1))  # the token next to the right one
        return made

    phases = {"generate": bench_families.PHASES["generate"]}
    monkeypatch.setattr(bench_families, "PHASES", phases)
    monkeypatch.setattr(bench_families, "both", differing)
    assert bench_families.main(["--families", "gpt_oss", *OPTIONS]) == 1
    assert "gpt_oss, generate: expected the results of both" in capsys.readouterr().err


def test_a_family_is_beside_the_attention_that_computes_the_same() -> None:
    """What torch's function lacks, softcap and sinks, is transformers' own."""
    beside = {name: family.model().config._attn_implementation for name, family in _few().items()}
    assert beside == {"gpt_oss": "eager", "mistral": "sdpa"}


def _few() -> dict[str, Family]:
    return {name: families.FAMILIES[name] for name in ("gpt_oss", "mistral")}
