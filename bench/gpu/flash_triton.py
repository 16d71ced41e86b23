"""Attention in Triton as one writes it down: a program for each block of queries, online softmax, blocks of
keys in a loop that Triton pipelines. Its sizes are searched by Triton's own tuner."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

_SIZES = [
    triton.Config({"ROWS": rows, "KEYS": keys}, num_warps=warps, num_stages=stages)
    for rows, keys, warps, stages in (
        (128, 64, 4, 3), (128, 64, 8, 3), (128, 128, 8, 2), (64, 64, 4, 3), (128, 32, 4, 4),
    )
]  # fmt: skip


@triton.autotune(configs=_SIZES, key=["rows", "keys", "CAUSAL", "DIM"])  # type: ignore[untyped-decorator]
@triton.jit  # type: ignore[untyped-decorator]
def _kernel(  # type: ignore[no-untyped-def]
    q, k, v, out, scale_log2, rows, keys, q_stride, k_stride, out_stride,
    CAUSAL: tl.constexpr, DIM: tl.constexpr, ROWS: tl.constexpr, KEYS: tl.constexpr,
):  # fmt: skip
    block, head = tl.program_id(0), tl.program_id(1)
    own = block * ROWS + tl.arange(0, ROWS)
    columns, lanes = tl.arange(0, DIM), tl.arange(0, KEYS)
    mine = q + head.to(tl.int64) * q_stride + own[:, None] * DIM + columns[None, :]
    query = tl.load(mine, mask=own[:, None] < rows, other=0.0)
    top = tl.full([ROWS], float("-inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    result = tl.zeros([ROWS, DIM], tl.float32)
    first = head.to(tl.int64) * k_stride
    end = tl.minimum(keys, (block + 1) * ROWS) if CAUSAL else keys
    for start in range(0, end, KEYS):
        place = start + lanes
        inside = place < keys
        at = first + place[:, None] * DIM + columns[None, :]
        key = tl.load(k + at, mask=inside[:, None], other=0.0)
        scores = tl.dot(query, tl.trans(key)) * scale_log2
        seen = inside[None, :]
        if CAUSAL:
            seen = seen & (place[None, :] <= own[:, None])
        scores = tl.where(seen, scores, float("-inf"))
        higher = tl.maximum(top, tl.max(scores, 1))
        weights = tl.exp2(scores - higher[:, None])
        shrunk = tl.exp2(top - higher)
        total = total * shrunk + tl.sum(weights, 1)
        value = tl.load(v + at, mask=inside[:, None], other=0.0)
        result = result * shrunk[:, None] + tl.dot(weights.to(value.dtype), value)
        top = higher
    mine = out + head.to(tl.int64) * out_stride + own[:, None] * DIM + columns[None, :]
    tl.store(mine, (result / total[:, None]).to(out.dtype.element_ty), mask=own[:, None] < rows)


def attention(q: Any, k: Any, v: Any, causal: bool, scale: float) -> Any:
    """softmax(scale q k^T) v of contiguous (batch, heads, rows, dim) tensors, dim a power of two; causal from
    the first key on."""
    batch, heads, rows, dim = q.shape
    keys, out = k.shape[2], torch.empty_like(q)

    def grid(sizes: Any) -> tuple[int, int]:
        return (triton.cdiv(rows, sizes["ROWS"]), batch * heads)

    _kernel[grid](
        q, k, v, out, scale * 1.4426950408889634, rows, keys, rows * dim, keys * dim, rows * dim,
        CAUSAL=causal, DIM=dim,
    )  # fmt: skip
    return out
