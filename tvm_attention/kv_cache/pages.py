"""Tables of pages as kernels take them: pages of a power of two of keys, all numbers in range."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tvm_attention.arrays import ArrayKind, is_dense
from tvm_attention.call import Pages
from tvm_attention.cuda.numbers import Numbers
from tvm_attention.errors import InvalidValueError, UnsupportedError

_Table = NDArray[np.int64]


def checked_table(table: NDArray[Any], lengths: _Table, page_size: int, pages: int) -> _Table:
    """A table (batch, entries) with 0 wherever ``lengths`` need no page.

    Raises InvalidValueError unless the numbers that are needed are of pages there are.
    """
    used = np.arange(table.shape[1]) * page_size < lengths[:, None]
    wrong = np.argwhere(used & ((table < 0) | (table >= pages)))
    if wrong.size:
        b, n = wrong[0].tolist()
        raise InvalidValueError(
            f"block_table: expected pages from 0 to {pages - 1}, got {table[b, n]} at {(b, n)}, which "
            f"{lengths[b]} keys of {page_size} a page need"
        )
    return np.where(used, table, 0).astype(np.int64)


def table_there(table: Any, lengths: Any, page_size: int, pages: int) -> Any:
    """The same of tensors on a GPU, for which nobody waits: numbers of no page become such of one."""
    entries = _counting(table, table.shape[1])
    used = entries * page_size < lengths[:, None]
    return table.clamp(0, pages - 1) * used


def opened_pages(kind: ArrayKind, key: Any, value: Any, table: Any) -> tuple[Any, Any, Pages]:
    """Keys and values (pages, kv heads, rows, dim), copied unless a kernel can read them in place, and
    their pages in units that it can: of the largest power of two of keys that divides a page's."""
    page_size = kind.shape(key)[2]
    part = page_size & -page_size
    arrays = [
        x if is_dense(kind.shape(x), kind.strides(x)) else kind.dense(x) for x in (key, value)
    ]
    steps = [_steps(kind, x, part) for x in arrays]
    if _ratio(*steps[0]) != _ratio(*steps[1]):  # one table is to serve both
        arrays = [kind.dense(x) for x in arrays]
        steps = [_steps(kind, x, part) for x in arrays]
    page, within = _ratio(*steps[0])
    parts, count = page_size // part, kind.shape(key)[0]
    most = (count - 1) * abs(page) + (parts - 1) * abs(within)
    if most > 2**31 - 1:
        raise UnsupportedError(
            f"pages: expected at most 2**31 parts of {part} keys, into which pages of {page_size} are "
            f"divided, got {most}; use a page size that is a power of two"
        )
    strides = [math.gcd(*step) or 1 for step in steps]
    units = _units(table, page, within, parts)
    return arrays[0], arrays[1], Pages(units, part.bit_length() - 1, *strides)


def _units(table: Any, page: int, within: int, parts: int) -> Any:
    """The table in parts of pages, int32."""
    here = isinstance(table, np.ndarray)
    each = np.arange(parts) if here else _counting(table, parts)
    numbers = table[..., None] * page + each * within
    numbers = numbers.reshape(len(table), table.shape[1] * parts)
    if here:
        return np.ascontiguousarray(numbers, np.int32)
    return (numbers if isinstance(numbers, Numbers) else numbers.to(table.dtype)).contiguous()


def _counting(table: Any, count: int) -> Any:
    """0, 1, 2, ... beside a table on a GPU."""
    if isinstance(table, Numbers):
        return table.counting(count)
    return table.new_ones(count).cumsum(0) - 1


def _steps(kind: ArrayKind, pages: Any, part: int) -> tuple[int, int]:
    """Elements from page to page, and from one part of a page to the next."""
    (count, _, rows, _), (page, _, row, _) = kind.shape(pages), kind.strides(pages)
    return (page if count > 1 else 0), (row * part if rows > part else 0)


def _ratio(page: int, within: int) -> tuple[int, int]:
    unit = math.gcd(page, within) or 1
    return page // unit, within // unit
