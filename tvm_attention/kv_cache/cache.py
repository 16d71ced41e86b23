"""Keys and values of a batch of sequences in one tensor each, allocated once."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tvm_attention.errors import InvalidValueError
from tvm_attention.kv_cache.stored import Stored, attend_stored, new_lengths
from tvm_attention.kv_cache.tensors import CacheShape, CacheTensors, scales_of
from tvm_attention.steps import Steps


class KVCache:
    """Keys (batch, kv_heads, max_length, head_dim) and values (..., value_dim) kept from step to step.

    Every batch element has a length of its own, 0 at first. :meth:`append` stores what is new, and
    :meth:`attend` computes attention of new queries over what is stored, in place: one query an
    element is decoding, several are chunked prefill.

    ``dtype`` is "float32", "float16", "bfloat16" or "int8". int8 keys and values are quantised as they
    are appended (:func:`tvm_attention.quantise` has the formula): by ``key_scale`` and ``value_scale``
    (kv_heads,), if given, else with a float32 scale for every token and head; attention reads the int8
    numbers. ``like`` is an array or tensor of the kind that the cache is to be of: NumPy's by default.
    ``value_dim`` defaults to ``head_dim``. Memory is not cleared when it is allocated.

    Raises InvalidValueError, InvalidTypeError or UnsupportedError. Appending is not for several threads
    at a time.
    """

    def __init__(
        self,
        batch: int,
        kv_heads: int,
        max_length: int,
        head_dim: int,
        value_dim: int | None = None,
        *,
        dtype: str = "float32",
        like: Any = None,
        key_scale: Any = None,
        value_scale: Any = None,
    ) -> None:
        shape = CacheShape.checked(
            batch=batch, kv_heads=kv_heads, max_length=max_length, head_dim=head_dim,
            value_dim=head_dim if value_dim is None else value_dim,
        )  # fmt: skip
        self._tensors = CacheTensors(shape, dtype, like, key_scale, value_scale)
        self._set_lengths(np.zeros(shape.blocks, np.int64))
        self._steps = Steps()

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Keys that each batch element has, (batch,); a copy."""
        copied: NDArray[np.int64] = self._lengths.copy()
        return copied

    @property
    def max_length(self) -> int:
        """Keys that each batch element may have."""
        return self._tensors.shape.rows

    @property
    def key(self) -> Any:
        """The keys (batch, kv_heads, max_length, head_dim) as stored; what is beyond the lengths is of
        no meaning."""
        return self._tensors.key

    @property
    def value(self) -> Any:
        """The values (batch, kv_heads, max_length, value_dim) likewise."""
        return self._tensors.value

    def append(self, key: Any, value: Any, *, lengths: Any = None, layout: str = "bhsd") -> None:
        """Store new keys (batch, kv_heads, n, head_dim) and values (batch, kv_heads, n, value_dim) behind
        those that each batch element has; with layout="bshd", (batch, n, kv_heads, dim).

        ``lengths`` (batch,) says how many of the n rows each element has, the first ones; all by default.
        Of the cache's dtype and kind; for an int8 cache, float32, float16 or bfloat16 and finite.

        Raises InvalidValueError or InvalidTypeError before anything is stored, also where an element
        would be longer than max_length.
        """
        batch = self._tensors.shape.blocks
        new = self._tensors.new(key, value, batch, layout)
        counts = np.full(batch, new.rows, np.int64)
        if lengths is not None:
            counts = new_lengths("lengths", lengths, batch, new.rows)
        total = self._lengths + counts
        over = np.flatnonzero(total > self.max_length)
        if over.size:
            b = int(over[0])
            raise InvalidValueError(
                f"cache: expected at most max_length={self.max_length} keys in a batch element, got "
                f"{self._lengths[b]} and {counts[b]} more in element {b}; nothing was stored; "
                f"truncate it or make a larger one"
            )
        starts = self._lengths
        if (counts == new.rows).all() and (starts == starts[0]).all():
            self._tensors.write(slice(None), int(starts[0]), new, slice(None), 0, new.rows)
        else:
            for b in range(batch):
                self._tensors.write(b, int(starts[b]), new, b, 0, int(counts[b]))
        self._set_lengths(total)

    def truncate(self, lengths: Any) -> None:
        """Forget keys and values from ``lengths`` (batch,) on; a whole number is for all elements.

        Raises InvalidValueError or InvalidTypeError for more than there are.
        """
        batch = self._tensors.shape.blocks
        if np.ndim(lengths) == 0:
            lengths = np.full(batch, lengths)
        kept = new_lengths("lengths", lengths, batch, self.max_length)
        if (kept > self._lengths).any():
            raise InvalidValueError(
                f"lengths: expected at most those of the cache, {self._lengths}, got {kept}"
            )
        self._set_lengths(kept)

    def attend(
        self,
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
        """Attention of query (batch, Hq, L, head_dim) over the cache, (batch, Hq, L, value_dim).

        The query is of the cache's kind and dtype (float32, float16 or bfloat16 for an int8 cache); Hq may
        be a multiple of kv_heads. By default the last query of an element stands at its last key and
        sees no later one: append a chunk's keys, then attend with its queries. ``query_lengths``
        (batch,) says how many of the L rows are queries of each element, the first ones; the others
        give zeros, and -inf as log-sum-exp. The other options are those of
        :func:`tvm_attention.attention`; ``mask`` broadcasts to (batch, Hq, L, the longest length).
        Returns and raises as ``attention`` does.
        """
        options = causal, window, softcap, scale, layout
        step = (
            return_lse is False and self._common > 0 and mask is None and query_lengths is None
            and alibi_slopes is None and sinks is None and (scale is None or type(scale) is float)
        )  # fmt: skip
        if step and (result := self._steps.run(query, self._common, options, out)) is not None:
            return result
        tensors = self._tensors
        scales = scales_of(tensors.key_scale, tensors.value_scale)
        longest = int(self._lengths.max(initial=0))
        stored = Stored(tensors.key, tensors.value, self._lengths, longest, scales=scales)
        return attend_stored(
            query, stored, query_lengths=query_lengths, mask=mask, causal=causal, window=window,
            softcap=softcap, alibi_slopes=alibi_slopes, sinks=sinks, scale=scale, layout=layout,
            return_lse=return_lse, out=out,
            computed=partial(self._steps.add, query, options, out) if step else None,
        )  # fmt: skip

    def _set_lengths(self, lengths: NDArray[np.int64]) -> None:
        self._lengths = lengths
        # Of every element, 0 if they differ.
        self._common = int(lengths[0]) if (lengths == lengths[0]).all() else 0
