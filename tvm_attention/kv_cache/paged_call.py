"""Attention over keys and values in pages, which a table finds."""

from __future__ import annotations

from typing import Any

import numpy as np

from tvm_attention.cuda.kinds import call_kind
from tvm_attention.errors import InvalidValueError
from tvm_attention.kv_cache.pages import checked_table, opened_pages
from tvm_attention.kv_cache.stored import LAYOUTS, Stored, attend_stored, new_lengths
from tvm_attention.small_arrays import whole_numbers


def paged_attention(
    query: Any,
    key_pages: Any,
    value_pages: Any,
    block_table: Any,
    kv_lengths: Any,
    *,
    query_lengths: Any = None,
    mask: Any = None,
    causal: str | None = None,
    window: tuple[int, int] | None = None,
    softcap: float | None = None,
    alibi_slopes: Any = None,
    sinks: Any = None,
    scale: float | None = None,
    layout: str = "bhsd",
    page_layout: str = "bshd",
    return_lse: bool = False,
    out: Any = None,
) -> Any:
    """:func:`tvm_attention.attention` over keys and values that lie in pages, read in place.

    query (B, Hq, L, E), or (B, L, Hq, E) with layout="bshd". key_pages (pages, page size, Hkv, E) and
    value_pages (pages, page size, Hkv, Ev), or (pages, Hkv, page size, dim) with page_layout="bhsd"; any
    strides, but a last axis that is not dense has them copied whole. All of one kind and dtype: float32,
    float16 or bfloat16. Key j of batch element b is row j % page size of page
    ``block_table[b, j // page size]``; ``kv_lengths`` (B,) says how many there are. Entries of the table
    (B, n) that those need not may hold anything. Any page size; one that is no power of two is read in
    parts of the largest one that divides it, as if the pages were so small.

    ``query_lengths`` (B,) says how many of the L rows are queries of each element, the first ones; the
    others give zeros, and -inf as log-sum-exp. The options, the result and ``out`` are those of
    ``attention``; ``mask`` broadcasts to (B, Hq, L, the greatest of kv_lengths).

    Raises InvalidValueError, InvalidTypeError or UnsupportedError before anything is computed.
    """
    if page_layout not in LAYOUTS:
        raise InvalidValueError(
            f"page_layout: expected {' or '.join(map(repr, LAYOUTS))}, got {page_layout!r}"
        )
    kind = call_kind(query)
    pages = []
    for name, array in (("key_pages", key_pages), ("value_pages", value_pages)):
        array = kind.opened(name, array)
        if len(kind.shape(array)) != 4:
            raise InvalidValueError(f"{name}: expected 4 axes, got shape {kind.shape(array)}")
        pages.append(kind.swapped_heads(array) if page_layout == "bshd" else array)
    key, value = pages
    shapes = kind.shape(key), kind.shape(value)
    if shapes[0][:3] != shapes[1][:3] or shapes[0][2] < 1:
        raise InvalidValueError(
            f"pages: expected as many of the same size and heads, of at least one key, got "
            f"key_pages {kind.shape(key_pages)} and value_pages {kind.shape(value_pages)}"
        )
    count, _, page_size, _ = shapes[0]
    table = whole_numbers("block_table", block_table)
    if table.ndim != 2:
        raise InvalidValueError(f"block_table: expected (batch, pages), got shape {table.shape}")
    lengths = new_lengths("kv_lengths", kv_lengths, len(table), table.shape[1] * page_size)
    needed = checked_table(np.asarray(table), lengths, page_size, count)
    key, value, found = opened_pages(kind, key, value, needed)
    return attend_stored(
        query, Stored(key, value, lengths, pages=found), query_lengths=query_lengths, mask=mask,
        causal=causal, window=window, softcap=softcap, alibi_slopes=alibi_slopes, sinks=sinks,
        scale=scale, layout=layout, return_lse=return_lse, out=out,
    )  # fmt: skip
