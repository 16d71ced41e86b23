"""What callers would write without this library, as a yardstick for the demo and the benchmark."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from tvm_attention.errors import UnsupportedError
from tvm_attention.workload import AttentionWorkload, default_scale

if TYPE_CHECKING:
    import torch

Float32 = NDArray[np.float32]


def numpy_attention(
    workload: AttentionWorkload, query: Float32, key: Float32, value: Float32
) -> Callable[[], Float32]:
    """Matrix product, softmax, matrix product in NumPy float32, with every buffer made beforehand.

    query (B, Hq, L, E), key (B, Hkv, S, E), value (B, Hkv, S, Ev); each call computes anew and
    returns the same (B, Hq, L, Ev) array. Heads that share keys are multiplied as one matrix.
    """
    w = workload
    rows = w.group * w.query_length  # of one key-value head
    q = query.reshape(w.batch, w.kv_heads or 1, rows, w.head_dim)
    keys_across = np.swapaxes(key, -1, -2)
    hidden = _hidden(w)
    scores = np.full((*q.shape[:3], w.key_length), np.nan, np.float32)
    result = np.full((*q.shape[:3], value.shape[3]), np.nan, np.float32)
    by_head = scores.reshape(w.batch, w.query_heads, w.query_length, w.key_length)
    scale = np.float32(default_scale(w.head_dim))

    def call() -> Float32:
        np.matmul(q, keys_across, out=scores)
        np.multiply(scores, scale, out=scores)
        if hidden is not None:
            np.copyto(by_head, -np.inf, where=hidden)
        np.subtract(scores, scores.max(axis=-1, keepdims=True), out=scores)
        np.exp(scores, out=scores)
        np.divide(scores, scores.sum(axis=-1, keepdims=True), out=scores)
        np.matmul(scores, value, out=result)
        return result.reshape(w.batch, w.query_heads, w.query_length, -1)

    return call


def torch_attention(
    workload: AttentionWorkload, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor
) -> Callable[[], torch.Tensor]:
    """torch.nn.functional.scaled_dot_product_attention on tensors of numpy_attention's shapes.

    Raises UnsupportedError for a bottom-right causal workload, which torch has no argument for.
    """
    from torch.nn.functional import scaled_dot_product_attention

    if workload.causal == "bottom_right" and workload.query_length != workload.key_length:
        raise UnsupportedError("torch: is_causal is top-left only, got a bottom-right workload")
    causal, grouped = workload.causal is not None, workload.group > 1

    def call() -> torch.Tensor:
        return scaled_dot_product_attention(query, key, value, is_causal=causal, enable_gqa=grouped)

    return call


def _hidden(workload: AttentionWorkload) -> NDArray[np.bool_] | None:
    """Where a query (row) may not see a key (column)."""
    w = workload
    if w.causal is None:
        return None
    offset = 0 if w.causal == "top_left" else w.key_length - w.query_length
    last_seen = np.arange(w.query_length)[:, None] + offset
    return np.asarray(np.arange(w.key_length) > last_seen)
