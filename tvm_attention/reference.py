"""The same mathematics in NumPy float64: what tests, tuning and the benchmark compare with."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tvm_attention.workload import AttentionWorkload, default_scale


def attention(
    query: NDArray[np.floating],
    key: NDArray[np.floating],
    value: NDArray[np.floating],
    *,
    causal: str | None = None,
    scale: float | None = None,
) -> NDArray[np.float64]:
    """softmax(scale * query key^T) value in float64.

    query (B, Hq, L, E), key (B, Hkv, S, E), value (B, Hkv, S, Ev) -> (B, Hq, L, Ev). Query head h uses
    key-value head h // (Hq / Hkv). A row that may attend to no key gives zeros.
    """
    q, k, v = (np.asarray(x, dtype=np.float64) for x in (query, key, value))
    group = q.shape[1] // k.shape[1]
    if group > 1:
        k, v = np.repeat(k, group, axis=1), np.repeat(v, group, axis=1)
    scores = q @ np.swapaxes(k, -1, -2) * (default_scale(q.shape[-1]) if scale is None else scale)
    if causal is not None:
        rows, columns = scores.shape[-2:]
        offset = 0 if causal == "top_left" else columns - rows
        visible = np.arange(columns) <= np.arange(rows)[:, None] + offset
        scores = np.where(visible, scores, -np.inf)
    top = scores.max(axis=-1, keepdims=True, initial=-np.inf)
    weights = np.exp(scores - np.where(np.isneginf(top), 0.0, top))
    total = weights.sum(axis=-1, keepdims=True)
    result: NDArray[np.float64] = weights / np.where(total == 0, 1.0, total) @ v
    return result


def random_inputs(
    workload: AttentionWorkload, seed: int | None = None
) -> tuple[NDArray[np.float32], NDArray[np.float32], NDArray[np.float32]]:
    """Fresh unit-normal query, key and value for a workload."""
    rng = np.random.default_rng(seed)
    w = workload
    assert w.kv_heads is not None
    assert w.value_dim is not None
    shapes = (
        (w.batch, w.query_heads, w.query_length, w.head_dim),
        (w.batch, w.kv_heads, w.key_length, w.head_dim),
        (w.batch, w.kv_heads, w.key_length, w.value_dim),
    )
    q, k, v = (rng.standard_normal(s, dtype=np.float32) for s in shapes)
    return q, k, v
