"""Keys and values of sequences that come, grow and go, in pages of one pool."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tvm_attention.arrays import TorchCudaTensors
from tvm_attention.errors import InvalidTypeError, InvalidValueError
from tvm_attention.kv_cache.page_pool import PagePool
from tvm_attention.kv_cache.pages import opened_pages
from tvm_attention.kv_cache.stored import Stored, attend_stored, new_lengths
from tvm_attention.kv_cache.tensors import CacheShape, CacheTensors, New, scales_of
from tvm_attention.small_arrays import whole_numbers


class PagedKVCache:
    """Keys (num_pages, kv_heads, page_size, head_dim) and values (..., value_dim) of any number of
    sequences, each of which owns as many pages as its keys need.

    :meth:`allocate` begins a sequence, :meth:`append` stores keys and values of some of them, :meth:`attend`
    computes attention of new queries over what some of them have, in place, and :meth:`free` gives
    the pages of one back. ``dtype``, ``like``, ``key_scale`` and ``value_scale`` are those of
    :class:`tvm_attention.KVCache`. Page sizes that are powers of two, 16 say, are read fastest. (The
    scales of an int8 cache that has one a token are gathered at every call, about 4 / head_dim of what
    is read.)

    Raises InvalidValueError, InvalidTypeError or UnsupportedError. Not for several threads at a time.
    """

    def __init__(
        self,
        num_pages: int,
        page_size: int,
        kv_heads: int,
        head_dim: int,
        value_dim: int | None = None,
        *,
        dtype: str = "float32",
        like: Any = None,
        key_scale: Any = None,
        value_scale: Any = None,
    ) -> None:
        shape = CacheShape.checked(
            num_pages=num_pages, kv_heads=kv_heads, page_size=page_size, head_dim=head_dim,
            value_dim=head_dim if value_dim is None else value_dim,
        )  # fmt: skip
        self._tensors = CacheTensors(shape, dtype, like, key_scale, value_scale)
        self._pool = PagePool(shape.blocks, shape.rows)

    @property
    def page_size(self) -> int:
        """Keys of a page."""
        return self._pool.page_size

    @property
    def free_pages(self) -> int:
        """Pages that no sequence has."""
        return self._pool.free_pages

    @property
    def sequences(self) -> tuple[int, ...]:
        """The sequences that are allocated, oldest first."""
        return self._pool.sequences

    @property
    def key_pages(self) -> Any:
        """The keys (num_pages, kv_heads, page_size, head_dim) as stored; rows that no sequence has are of
        no meaning."""
        return self._tensors.key

    @property
    def value_pages(self) -> Any:
        """The values (num_pages, kv_heads, page_size, value_dim) likewise."""
        return self._tensors.value

    def allocate(self) -> int:
        """Begin a sequence, without keys; the number by which the other methods know it."""
        return self._pool.allocate()

    def free(self, sequence: int) -> None:
        """End a sequence and give its pages back."""
        self._pool.free(sequence)

    def lengths(self, sequences: Sequence[int]) -> NDArray[np.int64]:
        """Keys that sequences have."""
        return np.array([self._pool.length(s) for s in self._known(sequences)], np.int64)

    def block_table(self, sequences: Sequence[int]) -> NDArray[np.int64]:
        """Page numbers of sequences, (sequences, the most pages of one), 0 beyond their ends."""
        return self._pool.table(self._known(sequences))

    def append(
        self,
        sequences: Sequence[int],
        key: Any,
        value: Any,
        *,
        lengths: Any = None,
        layout: str = "bhsd",
    ) -> None:
        """Store new keys (sequences, kv_heads, n, head_dim) and values (sequences, kv_heads, n, value_dim)
        behind those that each of different sequences has; with layout="bshd", (sequences, n, kv_heads, dim).

        ``lengths`` (sequences,) says how many of the n rows each has, the first ones; all by default.
        Of the cache's dtype and kind; for an int8 cache, float32, float16 or bfloat16 and finite.

        Raises InvalidValueError or InvalidTypeError before anything is stored, also where too few pages
        are free.
        """
        known = self._known(sequences)
        if len(set(known)) < len(known):
            raise InvalidValueError(f"sequences: expected each but once, got {known}")
        new = self._tensors.new(key, value, len(known), layout)
        counts = np.full(len(known), new.rows)
        if lengths is not None:
            counts = new_lengths("lengths", lengths, len(known), new.rows)
        starts = [self._pool.length(s) for s in known]
        self._pool.grow(known, counts.tolist())
        for n, (sequence, start) in enumerate(zip(known, starts, strict=True)):
            self._write(sequence, start, new, n, int(counts[n]))

    def _write(self, sequence: int, start: int, new: New, element: int, count: int) -> None:
        pages, size, done = self._pool.pages(sequence), self.page_size, 0
        while done < count:
            page, row = divmod(start + done, size)
            end = min(count, done + size - row)
            self._tensors.write(pages[page], row, new, element, done, end)
            done = end

    def attend(
        self,
        sequences: Sequence[int],
        query: Any,
        *,
        query_lengths: Any = None,
        mask: Any = None,
        causal: str | None = "bottom_right",
        window: tuple[int, int] | None = None,
        softcap: float | None = None,
        alibi_slopes: Any = None,
        sinks: Any = None,
        scale: float | None = None,
        layout: str = "bhsd",
        return_lse: bool = False,
        out: Any = None,
    ) -> Any:
        """Attention of query (sequences, Hq, L, head_dim) over what the sequences have, one batch element
        each: (sequences, Hq, L, value_dim).

        Everything else is as in :meth:`tvm_attention.KVCache.attend`.
        """
        known = self._known(sequences)
        lengths = np.array([self._pool.length(s) for s in known], np.int64)
        table = self._pool.table(known)
        return attend_stored(
            query, self._stored(table, lengths), query_lengths=query_lengths, mask=mask, causal=causal,
            window=window, softcap=softcap, alibi_slopes=alibi_slopes, sinks=sinks, scale=scale,
            layout=layout, return_lse=return_lse, out=out,
        )  # fmt: skip

    def _stored(self, table: NDArray[np.int64], lengths: NDArray[np.int64]) -> Stored:
        tensors = self._tensors
        key, value, pages = opened_pages(tensors.kind, tensors.key, tensors.value, table)
        pages_of = table
        if isinstance(tensors.kind, TorchCudaTensors) and tensors.key_scale is not None:
            pages_of = tensors.kind.uploaded(table, tensors.key_scale)
        scales = (_gathered(s, pages_of) for s in (tensors.key_scale, tensors.value_scale))
        longest = int(lengths.max(initial=0))
        return Stored(key, value, lengths, longest, pages, scales_of(*scales))

    def _known(self, sequences: Sequence[int]) -> list[int]:
        numbers = whole_numbers("sequences", sequences)
        if numbers.ndim != 1:
            raise InvalidTypeError(f"sequences: expected a list of them, got {sequences!r}")
        known: list[int] = numbers.tolist()
        self._pool.check(known)
        return known


def _gathered(scales: Any, table: Any) -> Any:
    """Scales of tokens in pages (pages, heads, rows) as (batch, heads, keys); others as they are."""
    if scales is None or scales.ndim == 1:
        return scales
    (batch, width), (_, heads, rows) = table.shape, scales.shape
    by_page = scales[table].swapaxes(1, 2)
    return by_page.reshape(batch, heads, width * rows)  # a copy
