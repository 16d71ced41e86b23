"""Calls of a workload with numbers drawn at random."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tvm_attention.dtypes import numpy_dtype
from tvm_attention.workload import AttentionWorkload


def random_inputs(
    workload: AttentionWorkload, seed: int | None = None
) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
    """Fresh unit-normal query, key and value for a workload, rounded to its dtype."""
    rng = np.random.default_rng(seed)
    w = workload
    assert w.kv_heads is not None
    assert w.value_dim is not None
    shapes = (
        (w.batch, w.query_heads, w.query_length, w.head_dim),
        (w.batch, w.kv_heads, w.key_length, w.head_dim),
        (w.batch, w.kv_heads, w.key_length, w.value_dim),
    )
    dtype = numpy_dtype(w.dtype)
    q, k, v = (rng.standard_normal(s, dtype=np.float32).astype(dtype, copy=False) for s in shapes)
    return q, k, v


def random_options(workload: AttentionWorkload, seed: int | None = None) -> dict[str, Any]:
    """Options of ``reference.attended`` that make a call one of this workload: a fifth of the keys masked,
    slopes, sinks and lengths drawn at random."""
    rng = np.random.default_rng(seed)
    w = workload
    options: dict[str, Any] = {"causal": w.causal, "window": w.window}
    if w.mask is not None:
        rows = 1 if w.mask_per_key else w.query_length
        seen = rng.random((w.batch, 1, rows, w.key_length)) < 0.8
        mask = seen
        if w.mask != "bool":
            mask = np.where(seen, rng.standard_normal(seen.shape), -np.inf).astype(
                numpy_dtype(w.mask)
            )
        if not (w.mask_dense or w.mask_per_key):
            mask = np.asfortranarray(mask)
        options["mask"] = mask
    if w.softcap:
        options["softcap"] = 20.0
    if w.alibi:
        options["alibi_slopes"] = 2.0 ** -np.linspace(1, 8, w.query_heads, dtype=np.float32)
    if w.sinks:
        options["sinks"] = rng.standard_normal(w.query_heads).astype(np.float32)
    if w.ragged:
        options["kv_lengths"] = rng.integers(w.key_length // 2, w.key_length + 1, w.batch)
    return options
