"""Attention over keys and values in pages, which a table finds."""

from __future__ import annotations

from typing import Any

import numpy as np

from tvm_attention.arrays import ArrayKind
from tvm_attention.cuda.kinds import call_kind
from tvm_attention.errors import InvalidValueError
from tvm_attention.kv_cache.pages import checked_table, opened_pages, table_there
from tvm_attention.kv_cache.stored import (
    LAYOUTS,
    Stored,
    attend_stored,
    lengths_there,
    new_lengths,
)
from tvm_attention.small_arrays import numbers_there, whole_numbers


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
    (B, n) that those need not may hold anything. Both may be torch tensors on the query's GPU: they are then
    read there, nobody waits for them, and what is out of range is cut. Any page size; one that is no power
    of two is read in parts of the largest one that divides it, as if the pages were so small.

    ``query_lengths`` (B,) says how many of the L rows are queries of each element, the first ones; the
    others give zeros, and -inf as log-sum-exp. The options, the result and ``out`` are those of
    ``attention``; ``mask`` broadcasts to (B, Hq, L, the greatest of kv_lengths), for lengths on a GPU to (B,
    Hq, L, n times page size).

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
    table, lengths, longest = _numbers(kind, block_table, kv_lengths, page_size, count)
    key, value, found = opened_pages(kind, key, value, table)
    return attend_stored(
        query, Stored(key, value, lengths, longest, pages=found), query_lengths=query_lengths, mask=mask,
        causal=causal, window=window, softcap=softcap, alibi_slopes=alibi_slopes, sinks=sinks,
        scale=scale, layout=layout, return_lse=return_lse, out=out,
    )  # fmt: skip


def _numbers(
    kind: ArrayKind, block_table: Any, kv_lengths: Any, page_size: int, count: int
) -> tuple[Any, Any, int]:
    """The table, the lengths and what none of those exceeds: NumPy arrays, or tensors on the GPU where one of
    them was there."""
    table, lengths = numbers_there(kind, block_table), numbers_there(kind, kv_lengths)
    if table is None and lengths is None:
        table = whole_numbers("block_table", block_table)
        _check_axes(table.shape)
        lengths = new_lengths("kv_lengths", kv_lengths, len(table), table.shape[1] * page_size)
        needed = checked_table(np.asarray(table), lengths, page_size, count)
        return needed, lengths, int(lengths.max(initial=0))
    given = table
    if given is None:
        given = _uploaded(kind, whole_numbers("block_table", block_table), lengths)
    _check_axes(tuple(given.shape))
    batch, entries = given.shape
    if lengths is None:
        host = new_lengths("kv_lengths", kv_lengths, batch, entries * page_size)
        lengths = _uploaded(kind, host, given)
    lengths = lengths_there(kind, "kv_lengths", lengths, batch, entries * page_size)
    return table_there(given, lengths, page_size, count), lengths, entries * page_size


def _uploaded(kind: Any, numbers: Any, like: Any) -> Any:
    return kind.uploaded(np.ascontiguousarray(numbers, np.int32), like)


def _check_axes(shape: tuple[int, ...]) -> None:
    if len(shape) != 2:
        raise InvalidValueError(f"block_table: expected (batch, pages), got shape {shape}")
