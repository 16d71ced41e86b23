"""Attention of a query over keys and values that are stored, each batch element's to its own length."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tvm_attention.arrays import ArrayKind
from tvm_attention.attend import Opened, attend
from tvm_attention.call import Call, Pages, Scales, ragged_fields
from tvm_attention.cuda.kinds import call_kind
from tvm_attention.errors import InvalidTypeError, InvalidValueError, UnsupportedError
from tvm_attention.operands import Geometry, geometry
from tvm_attention.options import Options, opened_options
from tvm_attention.small_arrays import numbers_there, whole_numbers
from tvm_attention.workload import DTYPES

LAYOUTS = ("bhsd", "bshd")


@dataclass(frozen=True, slots=True, eq=False)
class Stored:
    """``lengths`` (batch,) int64, or an int32 tensor on a GPU, none above ``longest``, of ``key`` and
    ``value`` (batch, kv heads, rows, dim), or, with ``pages``, (number of pages, kv heads, rows of a page,
    dim), last axis dense."""

    key: Any
    value: Any
    lengths: Any
    longest: int
    pages: Pages | None = None
    scales: Scales | None = None


def attend_stored(
    query: Any,
    stored: Stored,
    *,
    causal: str | None,
    query_lengths: Any,
    layout: str,
    return_lse: bool,
    out: Any,
    computed: Callable[[Opened], None] | None = None,
    **options: Any,
) -> Any:
    """What the caches' ``attend`` return, and raise, for a query (batch, heads, rows, dim). ``computed`` is
    told of a call that was."""
    kind, inputs = _opened_arrays(query, stored, layout)
    longest = stored.longest
    shapes = [kind.shape(x) for x in inputs]
    batch = len(stored.lengths)
    sizes = geometry(
        shapes[0], *((batch, s[1], longest, s[3]) for s in shapes[1:]), enable_gqa=True
    )
    queries = _query_lengths(kind, query_lengths, sizes)
    if causal == "bottom_right" and sizes.query_length <= 1:
        causal = None  # one query, which stands at the last key, sees all anyway
    dtype = kind.dtype(inputs[0])
    checked = opened_options(kind, sizes, query_dtype=dtype, causal=causal, **options)
    call = _call(kind, sizes, checked, stored, queries, inputs[0])
    if stored.pages is None:
        inputs = (inputs[0], inputs[1][:, :, :longest], inputs[2][:, :, :longest])
    opened = Opened(query, kind, inputs, call, layout == "bshd")
    done = attend(opened, out=out, return_lse=return_lse)
    if computed is not None and not sizes.empty:
        computed(opened)
    return done.returned()


def check_layout(layout: Any) -> None:
    if layout not in LAYOUTS:
        raise InvalidValueError(
            f"layout: expected {' or '.join(map(repr, LAYOUTS))}, got {layout!r}"
        )


def _opened_arrays(query: Any, stored: Stored, layout: str) -> tuple[ArrayKind, tuple[Any, ...]]:
    check_layout(layout)
    kind = call_kind(query)
    first = kind.opened("query", query)
    if len(kind.shape(first)) != 4:
        raise InvalidValueError(f"query: expected 4 axes, got shape {kind.shape(first)}")
    if layout == "bshd":
        first = kind.swapped_heads(first)
    key, value = kind.opened("stored keys", stored.key), kind.opened("stored values", stored.value)
    dtype, own = kind.dtype(first), kind.dtype(key)
    wanted = (own,) if stored.scales is None else DTYPES
    if stored.scales is None and own not in DTYPES:
        raise UnsupportedError(f"stored keys: expected {' or '.join(DTYPES)}, got {own}")
    if kind.dtype(value) != own:
        raise InvalidTypeError(f"stored values: expected {own} like keys, got {kind.dtype(value)}")
    if dtype not in wanted:
        raise InvalidTypeError(f"query: expected {' or '.join(wanted)}, got {dtype}; convert it")
    return kind, (first, key, value)


def _query_lengths(kind: ArrayKind, given: Any, sizes: Geometry) -> Any:
    if given is None:
        return None
    there = lengths_there(kind, "query_lengths", given, sizes.batch, sizes.query_length)
    if there is not None:
        return there
    return new_lengths("query_lengths", given, sizes.batch, sizes.query_length)


def lengths_there(kind: ArrayKind, name: str, given: Any, batch: int, most: int) -> Any:
    """The same of a tensor on the query's GPU, whose numbers are cut to what they may be, as nobody waits to
    look at them; None for what is on the processor."""
    there = numbers_there(kind, given)
    if there is None:
        return None
    if tuple(there.shape) != (batch,):
        raise InvalidValueError(f"{name}: expected shape {(batch,)}, got {tuple(there.shape)}")
    return there.clamp(0, most)


def new_lengths(name: str, given: Any, batch: int, most: int) -> NDArray[np.int64]:
    """(batch,) numbers from 0 to ``most``. Raises InvalidTypeError or InvalidValueError."""
    lengths = whole_numbers(name, given)
    if lengths.shape != (batch,):
        raise InvalidValueError(f"{name}: expected shape {(batch,)}, got {lengths.shape}")
    if ((lengths < 0) | (lengths > most)).any():
        raise InvalidValueError(f"{name}: expected 0 to {most}, got {lengths}")
    return lengths.astype(np.int64)


def _call(
    kind: Any, sizes: Geometry, options: Options, stored: Stored, queries: Any, query: Any
) -> Call:
    lengths, ragged = stored.lengths, None
    here = isinstance(lengths, np.ndarray)
    same = queries is None and here and (lengths == sizes.key_length).all()
    if not same or stored.pages is not None:
        if here and not (queries is None or isinstance(queries, np.ndarray)):
            lengths = kind.uploaded(lengths.astype(np.int32), query)
        elif not here and isinstance(queries, np.ndarray):
            queries = kind.uploaded(queries.astype(np.int32), query)
        rows = sizes.query_length if queries is None else queries
        ragged = ragged_fields(sizes.batch, rows, lengths)
    return Call(
        sizes, options, kind.dtype(query), sizes.batch, sizes.key_length, ragged, stored.pages,
        stored.scales, all_queries=queries is None,
    )  # fmt: skip
