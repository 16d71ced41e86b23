"""How much a workload has to compute and to read."""

from __future__ import annotations

from tvm_attention.dtypes import ELEMENT_BYTES
from tvm_attention.workload import UNBOUNDED, AttentionWorkload


def flops(w: AttentionWorkload) -> int:
    """Multiply-adds of the visible pairs counted as two operations; masks are not looked into."""
    assert w.value_dim is not None
    return 2 * w.batch * w.query_heads * _pairs(w) * (w.head_dim + w.value_dim)


def _pairs(w: AttentionWorkload) -> int:
    """Queries and the keys they see by their places, in one head."""
    left, right = w.window or (UNBOUNDED, UNBOUNDED)
    if w.causal:
        right = 0
    if (left, right) == (UNBOUNDED, UNBOUNDED):
        return w.query_length * w.key_length
    pairs, offset = 0, 0 if w.causal == "top_left" else w.key_length - w.query_length
    for own in range(offset, offset + w.query_length):
        first = 0 if left == UNBOUNDED else own - left
        end = w.key_length if right == UNBOUNDED else own + right + 1
        pairs += max(0, min(w.key_length, end) - max(0, first))
    return pairs


def kv_bytes(w: AttentionWorkload) -> int:
    """Bytes of the key and value tensors."""
    assert w.value_dim is not None
    assert w.kv_heads is not None
    size = ELEMENT_BYTES[w.kv_dtype or w.dtype]
    return size * w.batch * w.kv_heads * w.key_length * (w.head_dim + w.value_dim)


def all_bytes(w: AttentionWorkload) -> int:
    """Bytes of all four tensors: what a kernel that keeps everything else in caches has to move."""
    assert w.value_dim is not None
    rows = w.batch * w.query_heads * w.query_length
    return kv_bytes(w) + ELEMENT_BYTES[w.dtype] * rows * (w.head_dim + w.value_dim)
