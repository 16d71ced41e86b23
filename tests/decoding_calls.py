"""Calls of one decoding kernel, of numbers and of int8 keys and values, against float64."""

from __future__ import annotations

from typing import Any

import numpy as np
from attention_bounds import assert_near
from attention_cases import kernel_of
from attention_variants import bounds, check_legal

from tvm_attention import reference
from tvm_attention.arrays import NumPyArrays
from tvm_attention.call import Call
from tvm_attention.kv_cache.tensors import scales_of
from tvm_attention.operands import geometry
from tvm_attention.options import opened_options
from tvm_attention.random_calls import random_inputs
from tvm_attention.schedules import Candidate
from tvm_attention.target import HardwareTarget
from tvm_attention.workload import AttentionWorkload


def attended(
    w: AttentionWorkload,
    candidate: Candidate,
    target: HardwareTarget,
    arrays: tuple[Any, Any, Any],
    scales: tuple[Any, Any] | None = None,
    threads: int = 1,
    **options: Any,
) -> tuple[Any, Any]:
    """(result, log-sum-exp) of the candidate's kernel for a workload, of arrays of any length."""
    kind, (q, k, v) = NumPyArrays(), arrays
    sizes = geometry(q.shape, k.shape, v.shape, enable_gqa=True)
    opened = opened_options(kind, sizes, query_dtype=w.dtype, **options)
    call = Call.of(sizes, opened, w.dtype, scales=None if scales is None else scales_of(*scales))
    check_legal(w, target, candidate)
    assert call.workload(w.output).kernel_features == w.kernel_features
    out = np.full((*q.shape[:3], v.shape[3]), np.nan, q.dtype)
    lse = np.full(q.shape[:3], np.nan, np.float32)
    kernel_of(w, candidate, target, threads).compute(kind, call, arrays, out, lse)
    return out, lse


def assert_right(
    w: AttentionWorkload, found: tuple[Any, Any], exact: tuple[Any, Any, Any], **options: Any
) -> None:
    expected = reference.attended(*exact, **options)
    size, span = bounds(*exact, **options)
    assert_near(found[0], expected.out, w.dtype, span=span, size=size, what=f"{w}")
    assert_near(found[1], expected.lse, "float32", span=1.0, size=size, what=f"lse {w}")


def quantised(w: AttentionWorkload, seed: int = 0) -> tuple[Any, Any, Any]:
    """A query with int8 keys and values, -128 among them, their scales, and what they stand for."""
    q, k, v = random_inputs(w, seed)
    rng = np.random.default_rng(seed)
    stored = [rng.integers(-128, 128, x.shape, np.int8) for x in (k, v)]
    scales = [rng.uniform(0.005, 0.02, x.shape[:3]).astype(np.float32) for x in (k, v)]
    exact = [x * s[..., None] for x, s in zip(stored, scales, strict=True)]
    return (q, *stored), tuple(scales), (q, *exact)
