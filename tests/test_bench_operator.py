"""The benchmark of torch's operators, timed for a moment."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("torch")

import tvm_attention.torch
from bench import bench_operator


def test_every_call_is_timed_beside_the_direct_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    cases = bench_operator._cases()
    assert {name.split(":")[0] for name, *_ in cases} == {
        "attention", "scaled_dot_product_attention"
    }  # fmt: skip
    few = [case for case in cases if case[0].endswith(": plain")]
    for name, call, direct in few:
        assert call().equal(direct()), name  # type: ignore[attr-defined]
    monkeypatch.setattr(bench_operator, "_cases", lambda: few[:1])
    path = tmp_path / "operator.json"
    assert bench_operator.main(["--seconds", "0.01", "--json", str(path)]) == 0
    assert not tvm_attention.torch.is_enabled()
    plain, routed = json.loads(path.read_text())["cases"]
    for case in (plain, routed):
        assert case["direct"]["median"] > 0
        assert case["seconds"]["median"] > 0
        assert case["overhead"]["q1"] <= case["overhead"]["median"] <= case["overhead"]["q3"]
    assert "routed" in capsys.readouterr().out
