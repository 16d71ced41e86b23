"""Tables as kernels take them find every key, in pages of any size and strides, without a copy."""

from __future__ import annotations

import math
from itertools import product

import numpy as np
import pytest
from numpy.typing import NDArray

from tvm_attention import UnsupportedError
from tvm_attention.arrays import NumPyArrays
from tvm_attention.call import Pages
from tvm_attention.kv_cache.pages import checked_table, opened_pages

Array = NDArray[np.float32]
KIND = NumPyArrays()


def found_key(array: Array, pages: Pages, stride: int, b: int, key: int) -> list[list[float]]:
    """A key of a batch element, (heads, dim), found as a kernel finds it."""
    unit, row = int(pages.table[b, key >> pages.shift]), key & ((1 << pages.shift) - 1)
    _, head, step, _ = KIND.strides(array)
    start = offset_of(array) + unit * stride + row * step
    memory = memory_of(array).reshape(-1)
    _, heads, _, dim = array.shape
    return [[float(memory[start + h * head + c]) for c in range(dim)] for h in range(heads)]


def memory_of(array: Array) -> Array:
    base = array
    while isinstance(base.base, np.ndarray):
        base = base.base
    return base


def offset_of(array: Array) -> int:
    """Elements from the start of its memory to its own."""
    start = memory_of(array).__array_interface__["data"][0]
    return int(array.__array_interface__["data"][0] - start) // array.itemsize


def layouts(page_size: int) -> dict[str, tuple[Array, Array]]:
    def numbers(*shape: int) -> Array:
        return np.arange(math.prod(shape), dtype=np.float32).reshape(shape)

    together = numbers(5, 2, page_size, 3, 4)
    return {
        "heads first": (numbers(5, 3, page_size, 4), numbers(5, 3, page_size, 8)),
        "rows first": (
            numbers(5, page_size, 3, 4).swapaxes(1, 2), numbers(5, page_size, 3, 8).swapaxes(1, 2),
        ),
        "together": (together[:, 0].swapaxes(1, 2), together[:, 1].swapaxes(1, 2)),
        "backwards": (numbers(5, 3, page_size, 4)[::-1], numbers(5, 3, page_size, 8)[::-1]),
        "one page": (numbers(1, 3, page_size, 4), numbers(1, 3, page_size, 8)),
    }  # fmt: skip


@pytest.mark.parametrize("page_size", [1, 6, 7, 12, 16])
@pytest.mark.parametrize("name", list(layouts(1)))
def test_every_key_is_found_in_place(name: str, page_size: int) -> None:
    key, value = layouts(page_size)[name]
    table = np.array([[0, 0], [4, 2]]) % len(key)
    first, second, pages = opened_pages(KIND, key, value, table)
    assert first is key
    assert second is value
    for b, j in product(range(2), range(2 * page_size)):
        page, row = table[b, j // page_size], j % page_size
        for array, stride in ((key, pages.key_stride), (value, pages.value_stride)):
            assert found_key(array, pages, stride, b, j) == array[page, :, row].tolist()


def test_a_power_of_two_needs_no_other_table() -> None:
    key, value = layouts(16)["heads first"]
    table = np.array([[3, 1]])
    _, _, pages = opened_pages(KIND, key, value, table)
    assert pages.table.tolist() == table.tolist()
    assert pages.shift == 4
    assert pages.table.dtype == np.int32


def test_one_table_cannot_serve_two_kinds_of_steps() -> None:
    key = np.zeros((5, 3, 6, 4), np.float32)
    value = np.zeros((5, 4, 6, 8), np.float32)[:, :3]
    first, second, pages = opened_pages(KIND, key, value, np.array([[4]]))
    assert second is not value
    assert first.strides[0] * 8 == second.strides[0] * 4
    assert (pages.key_stride, pages.value_stride) == (8, 16)


def test_too_many_parts() -> None:
    key = np.lib.stride_tricks.as_strided(np.zeros(4, np.float32), (2**29, 1, 5, 1), (20, 20, 4, 4))
    with pytest.raises(UnsupportedError, match=r"power of two"):
        opened_pages(KIND, key, key, np.array([[2**29 - 1]]))


def test_entries_that_are_not_needed_are_cleared() -> None:
    table = np.array([[2, 9, -5], [7, 7, 7]])
    found = checked_table(table, np.array([4, 0]), 4, 3)
    assert found.tolist() == [[2, 0, 0], [0, 0, 0]]
