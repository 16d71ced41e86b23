"""Decoding int8 caches by words on x86 (VPMADDWD, VPDPWSSD): where it is offered, what kernels consist of,
their results."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from attention_cases import runnable_levels
from decoding_calls import assert_right, attended, quantised

from tvm_attention.compiler import build_module
from tvm_attention.schedules import Candidate, x86
from tvm_attention.target import HardwareTarget, detect_target, named_target
from tvm_attention.workload import AttentionWorkload

LEVELS = ("x86-64-v2", "x86-64-v3", "x86-64-v4")
FUSED = ("icelake", "zen4", "alderlake")
ONE = AttentionWorkload(
    head_dim=64, value_dim=96, batch=2, query_heads=2, kv_heads=2, query_length=1, key_length=97,
    kv_dtype="int8", output="attention_and_lse",
)  # fmt: skip
WORKLOADS = (
    ONE,
    replace(ONE, head_dim=40, value_dim=80, query_length=2, query_heads=4),
    replace(ONE, head_dim=16, dtype="bfloat16", query_length=2, causal="bottom_right"),
    replace(ONE, head_dim=320, softcap=True, window=(40, -1), mask="bool", mask_per_key=True),
)


def decisions(target: HardwareTarget, w: AttentionWorkload) -> dict[str, int]:
    return dict(x86.default_candidate(w, x86.machine_parameters(target)).decisions)


def by_words(w: AttentionWorkload, target: HardwareTarget) -> Candidate:
    candidate = x86.default_candidate(w, x86.machine_parameters(target))
    rows = int(w.length_class.removeprefix("decode-r"))
    return candidate.replace(integer_products=1, score_keys=4 if rows == 1 else 1)


def test_where_it_is_offered() -> None:
    for name in (*LEVELS, *FUSED):
        target = named_target(name)
        assert decisions(target, ONE)["integer_products"] == int(name in FUSED)
        assert decisions(target, replace(ONE, query_heads=8))["integer_products"] == 0
        assert "integer_products" not in decisions(target, replace(ONE, kv_dtype=None))
        machine = x86.machine_parameters(target)
        space = x86.design_space(replace(ONE, query_heads=16), machine)
        many = by_words(ONE, target).replace(score_keys=4)
        assert "score tile" in (space.refusal(many) or "")
    narrow = named_target("x86-64-v2")
    odd = replace(ONE, head_dim=12, value_dim=12)
    assert "integer_products" not in decisions(narrow, odd)


@pytest.mark.parametrize("name", [*LEVELS[1:], *FUSED])
def test_products_are_added_at_once_where_a_processor_can(name: str) -> None:
    """By the assembly: two digits by four keys, of whole vectors and of others."""
    target = named_target(name)
    lanes = x86.machine_parameters(target).lanes
    w = replace(ONE, head_dim=8 * lanes, value_dim=4 * lanes)
    code = build_module(w, target, by_words(w, target)).mod.inspect_source("asm")
    apart, fused = (code.count(f"{n}\t") for n in ("vpmaddwd", "vpdpwssd"))
    steps = w.head_dim // (2 * lanes)
    assert apart + fused >= 2 * 2 * 4 * steps
    assert code.count("vpmovsxbw\t") >= 2 * 4 * steps
    assert fused > apart if name in FUSED else fused == 0, (apart, fused)


@pytest.mark.parametrize("name", runnable_levels())
@pytest.mark.parametrize("w", WORKLOADS, ids=str)
@pytest.mark.parametrize("keys", [1, 97, 300])
def test_results(name: str, w: AttentionWorkload, keys: int) -> None:
    target = detect_target(name)
    options: dict[str, Any] = {}
    w = replace(w, key_length=keys)
    (q, k, v), scales, exact = quantised(w, keys)
    # Rows of which a single number is large, and rows of small ones: digits are of a row's largest.
    q[0, 0, :, 5] *= 50
    q[0, 1] *= np.asarray(1e-3, q.dtype)
    if w.causal:
        options["causal"] = w.causal
    if w.window:
        options |= {"window": w.window, "softcap": 5.0}
        options["mask"] = np.random.default_rng(1).random((2, 1, 1, keys)) < 0.8
        options["mask"][..., -1] = True
    found = attended(w, by_words(w, target), target, (q, k, v), scales, 1 + keys % 2, **options)
    assert_right(w, found, exact, **options)


@pytest.mark.parametrize("value", [np.nan, np.inf, 0.0])
def test_a_query_that_is_no_number(value: float) -> None:
    """It makes its own row NaN; a row of zeros gives the mean of the values."""
    target = detect_target("x86-64-v2")
    (q, k, v), scales, exact = quantised(ONE)
    q[0, 1, 0, :] = value
    found = attended(ONE, by_words(ONE, target), target, (q, k, v), scales)
    if value == 0.0:
        assert_right(ONE, found, exact)
        return
    assert np.isnan(found[0][0, 1]).all()
    assert np.isfinite(found[0][0, 0]).all()
