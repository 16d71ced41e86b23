"""The operands of one call: checked, and reduced to addresses and strides."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from tvm_attention.arrays import ArrayKind, Shape
from tvm_attention.errors import InvalidTypeError, InvalidValueError, UnsupportedError
from tvm_attention.workload import DTYPES, MAX_HEAD_DIM, default_scale

_MAX_LENGTH = 2**31 - 1
_MAX_SCALE = 2.0**127  # times log2(e), it is still a float32


@dataclass(frozen=True, slots=True)
class Geometry:
    """Extents of a call; query and out have ``axes`` axes (2: rows x dim, 3: batch x rows x dim, 4)."""

    axes: int
    batch: int
    query_heads: int
    kv_heads: int
    query_length: int
    key_length: int
    head_dim: int
    value_dim: int

    @property
    def out_shape(self) -> Shape:
        leading = {2: (), 3: (self.batch,), 4: (self.batch, self.query_heads)}[self.axes]
        return (*leading, self.query_length, self.value_dim)

    @property
    def key_operations(self) -> int:
        """Multiply-adds of all rows with a key."""
        rows = self.batch * self.query_heads * self.query_length
        return rows * (self.head_dim + self.value_dim)

    @property
    def empty(self) -> bool:
        """Whether there is nothing to compute."""
        return 0 in (self.batch, self.query_heads, self.query_length, self.value_dim)


def geometry(query: Shape, key: Shape, value: Shape, *, enable_gqa: bool) -> Geometry:
    """Extents from three shapes (..., rows, dim), each of the same number of axes, 2 to 4.

    Raises InvalidValueError naming the shapes that do not fit.
    """
    if not 2 <= len(query) <= 4:
        raise InvalidValueError(
            f"query: expected 2 to 4 axes (batch, heads, rows, dim), got shape {query}"
        )
    if len(key) != len(query) or len(value) != len(query):
        raise InvalidValueError(
            f"query, key and value: expected as many axes each, got {query}, {key} and {value}"
        )
    (b, hq, lq, e), (bk, hk, s, ek), (bv, hv, sv, ev) = (_four(x) for x in (query, key, value))
    if not b == bk == bv:
        raise InvalidValueError(f"batch: expected one size, got query {b}, key {bk}, value {bv}")
    if hk != hv:
        raise InvalidValueError(f"heads: expected key and value alike, got {hk} and {hv}")
    if e != ek:
        raise InvalidValueError(f"head dimension: expected one, got query {e} and key {ek}")
    if s != sv:
        raise InvalidValueError(f"length: expected key and value alike, got {s} and {sv}")
    _check_heads(hq, hk, enable_gqa)
    for name, dim in (("query", e), ("value", ev)):
        if dim > MAX_HEAD_DIM:
            raise UnsupportedError(
                f"{name}: expected a last axis of at most {MAX_HEAD_DIM}, got {dim}"
            )
    if max(b, hq, lq, s) > _MAX_LENGTH:
        raise UnsupportedError(f"lengths: expected at most {_MAX_LENGTH}, got {query}, {key}")
    sizes = Geometry(len(query), b, hq, hk, lq, s, e, ev)
    if e == 0 and s > 0 and not sizes.empty:
        raise InvalidValueError(f"query: expected a last axis of at least 1, got shape {query}")
    return sizes


def _four(shape: Shape) -> Shape:
    if len(shape) == 4:
        return shape
    return (1, 1, *shape) if len(shape) == 2 else (shape[0], 1, *shape[1:])


def _check_heads(query_heads: int, kv_heads: int, enable_gqa: bool) -> None:
    if query_heads == kv_heads:
        return
    if not enable_gqa:
        raise InvalidValueError(
            f"heads: expected one number, got query {query_heads} and key {kv_heads}; pass "
            f"enable_gqa=True for grouped-query attention"
        )
    if kv_heads == 0 or query_heads % kv_heads:
        raise InvalidValueError(
            f"grouped-query attention: expected query heads to be a multiple of key heads, got "
            f"{query_heads} and {kv_heads}"
        )


def opened_inputs(kind: ArrayKind, query: Any, key: Any, value: Any) -> tuple[Any, Any, Any]:
    """The three as the kind reads them; raises unless all are of it, of one supported dtype and
    readable here."""
    named = (("query", query), ("key", key), ("value", value))
    first, second, third = (kind.opened(name, array) for name, array in named)
    inputs = (first, second, third)
    dtypes = [kind.dtype(x) for x in inputs]
    if len(set(dtypes)) > 1:
        raise InvalidTypeError(
            f"dtype: expected one, got query {dtypes[0]}, key {dtypes[1]}, value {dtypes[2]}"
        )
    if dtypes[0] not in DTYPES:
        error = UnsupportedError if dtypes[0] == "float64" else InvalidTypeError
        raise error(f"dtype: expected {' or '.join(DTYPES)}, got {dtypes[0]}; convert the inputs")
    return inputs


def check_scale(scale: Any, head_dim: int) -> float:
    """The scale to use: 1 / sqrt(head_dim) by default. Raises for what is no finite number."""
    if scale is None:
        return default_scale(max(head_dim, 1))
    try:
        if isinstance(scale, (bool, str, bytes)):
            raise TypeError
        number = float(scale)  # an array of one element is a number, too
    except OverflowError:
        number = math.inf
    except (TypeError, ValueError, RuntimeError):
        raise InvalidTypeError(f"scale: expected a number or None, got {scale!r}") from None
    if not abs(number) <= _MAX_SCALE:
        raise InvalidValueError(f"scale: expected a finite float32 number, got {number}")
    return number


def check_flag(name: str, flag: Any) -> None:
    """Raise unless it is True or False, naming it."""
    if not isinstance(flag, (bool, np.bool_)):
        raise InvalidTypeError(f"{name}: expected True or False, got {flag!r}")


def kernel_strides(strides: Shape) -> Shape:
    """(batch, head, row) strides of a 2-, 3- or 4-axis array with a dense last axis."""
    outer = strides[:-1]
    if len(outer) == 3:
        return outer
    return (0, 0, *outer) if len(outer) == 1 else (outer[0], 0, outer[1])


def check_threads(count: int | None) -> None:
    """Raise for a number of threads that is none."""
    if count is None:
        return
    if isinstance(count, bool) or not isinstance(count, int):
        raise InvalidTypeError(f"num_threads: expected an int, got {count!r}")
    if count < 1:
        raise InvalidValueError(f"num_threads: expected at least 1, got {count}")
