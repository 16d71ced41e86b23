"""Kinds of arrays and element types: names, results of other types, bfloat16 through DLPack."""

from __future__ import annotations

import sys
from typing import Any

import dlpack_arrays
import ml_dtypes
import numpy as np
import pytest

from tvm_attention._tvm import load_tvm_libraries
from tvm_attention.arrays import (
    ArrayKind,
    DLPackArrays,
    NumPyArrays,
    TorchTensors,
    kind_of,
    memory_range,
)
from tvm_attention.dtypes import ELEMENT_BYTES, numpy_dtype
from tvm_attention.errors import UnsupportedError

torch = pytest.importorskip("torch")

FLOATS = ["float32", "float16", "bfloat16"]
KINDS: list[ArrayKind] = [NumPyArrays(), TorchTensors(), DLPackArrays()]
IDS = [k.name for k in KINDS]


def array_of(kind: ArrayKind, dtype: str, shape: tuple[int, ...] = (2, 3, 4, 5)) -> Any:
    """0, 1, 2... of a type, as the kind opens it."""
    count = int(np.prod(shape))
    if isinstance(kind, NumPyArrays) and not isinstance(kind, DLPackArrays):
        return (np.arange(count) % 120).astype(numpy_dtype(dtype)).reshape(shape)
    tensor = (torch.arange(count) % 120).to(getattr(torch, dtype)).reshape(shape)
    return (
        tensor if isinstance(kind, TorchTensors) else kind.opened("x", dlpack_arrays.Array(tensor))
    )


@pytest.mark.parametrize("dtype", ELEMENT_BYTES)
@pytest.mark.parametrize("kind", KINDS, ids=IDS)
def test_types_have_the_same_names_in_every_kind(kind: ArrayKind, dtype: str) -> None:
    array = array_of(kind, dtype)
    assert kind.dtype(array) == dtype
    assert kind.strides(array) == (60, 20, 5, 1)
    assert kind.has_whole_strides(array)
    numbers = kind.numbers(array)
    assert type(numbers) is np.ndarray
    assert str(numbers.dtype) == ("float32" if dtype == "bfloat16" else dtype)
    expected = (np.arange(120) % 120).astype(numpy_dtype(dtype)).reshape(2, 3, 4, 5)
    np.testing.assert_array_equal(numbers, expected.astype(numbers.dtype))


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("kind", KINDS, ids=IDS)
def test_results_of_another_type(kind: ArrayKind, dtype: str) -> None:
    for like_dtype in FLOATS:
        like = kind.swapped_heads(array_of(kind, like_dtype))
        for shape in (tuple(like.shape), (2, 3)):
            made = kind.empty(shape, like, dtype)
            assert type(made) is type(like)
            assert kind.dtype(made) == dtype
            assert kind.shape(made) == shape
            made[...] = 1.0
            assert kind.dtype(kind.empty(shape, like)) == like_dtype
        assert kind.strides(kind.empty(tuple(like.shape), like, dtype)) == kind.strides(like)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("kind", KINDS, ids=IDS)
def test_heads_and_rows_change_places_without_a_copy(kind: ArrayKind, dtype: str) -> None:
    array = array_of(kind, dtype)
    swapped = kind.swapped_heads(array)
    assert kind.shape(swapped) == (2, 4, 3, 5)
    assert kind.strides(swapped) == (60, 5, 20, 1)
    assert kind.address(swapped) == kind.address(array)
    again = kind.swapped_heads(swapped)
    assert kind.shape(again) == (2, 3, 4, 5)
    assert kind.strides(again) == kind.strides(array)


@pytest.mark.parametrize("kind", KINDS, ids=IDS)
def test_repeated_axes_are_no_copies(kind: ArrayKind) -> None:
    array = array_of(kind, "bfloat16", (3, 1, 5))
    view = kind.expanded(array, (2, 3, 4, 5))
    assert kind.shape(view) == (2, 3, 4, 5)
    assert kind.strides(view) == (0, 5, 0, 1)
    assert kind.address(view) == kind.address(array)


@pytest.mark.parametrize("dtype", ["int8", "bfloat16", "float16", "float32"])
@pytest.mark.parametrize("kind", KINDS, ids=IDS)
def test_memory_ranges(kind: ArrayKind, dtype: str) -> None:
    array, size = array_of(kind, dtype), ELEMENT_BYTES[dtype]
    start = kind.address(array)
    assert memory_range(kind, array) == (start, start + 120 * size)
    part = array[1:, :2, 1:3, ::2]
    first, end = start + (60 + 5) * size, start + (60 + 20 + 10 + 4 + 1) * size
    assert memory_range(kind, part) == (first, end)
    nothing = memory_range(kind, array[:0])
    assert nothing[0] == nothing[1]
    if not isinstance(kind, TorchTensors):
        assert memory_range(kind, array[::-1, :, ::-1]) == (start, start + 120 * size)


def test_steps_of_parts_of_an_element_are_no_strides() -> None:
    record = np.zeros(4, [("tag", "i1"), ("rows", "f4", (3,))])
    assert not NumPyArrays().has_whole_strides(record["rows"])
    assert NumPyArrays().has_whole_strides(np.broadcast_to(np.float32(0), (2, 3)))


def test_bfloat16_through_dlpack_is_read_in_place() -> None:
    tensor = torch.arange(6, dtype=torch.bfloat16).reshape(2, 3).t()
    kind = DLPackArrays()
    opened = kind.opened("query", dlpack_arrays.Array(tensor))
    assert kind.address(opened) == tensor.data_ptr()
    assert kind.strides(opened) == (1, 3)
    np.testing.assert_array_equal(opened.astype(np.float32), tensor.float().numpy())
    tensor[0, 0] = 7.0
    assert opened[0, 0] == 7.0


def test_bfloat16_through_dlpack_keeps_its_memory() -> None:
    kept = DLPackArrays().opened("key", dlpack_arrays.Array(torch.full((1000,), 3.0).bfloat16()))
    others = [torch.zeros(1000, dtype=torch.bfloat16) for _ in range(50)]
    assert len(others) == 50
    assert (kept == 3.0).all()


def test_bfloat16_results_reach_other_libraries_through_dlpack() -> None:
    result = np.arange(6).astype(ml_dtypes.bfloat16).reshape(2, 3)[:, ::2]
    of_torch = DLPackArrays().own_kind(result, WithTorch())
    assert of_torch.dtype == torch.bfloat16
    assert of_torch.tolist() == [[0.0, 2.0], [3.0, 5.0]]
    of_torch[0, 0] = 9.0
    assert result[0, 0] == 9.0
    of_tvm = DLPackArrays().own_kind(result, Unknown())
    assert isinstance(of_tvm, load_tvm_libraries().Tensor)
    assert str(of_tvm.dtype) == "bfloat16"
    del result, of_tvm
    assert of_torch.tolist() == [[9.0, 2.0], [3.0, 5.0]]


def test_bfloat16_needs_its_package_in_numpy_only(monkeypatch: pytest.MonkeyPatch) -> None:
    tensor = torch.zeros(2, dtype=torch.bfloat16)
    monkeypatch.setitem(sys.modules, "ml_dtypes", None)
    assert kind_of(tensor).dtype(kind_of(tensor).empty((3,), tensor)) == "bfloat16"
    with pytest.raises(UnsupportedError, match=r"bfloat16: expected .*pip install ml_dtypes"):
        DLPackArrays().opened("key", dlpack_arrays.Array(tensor))


class WithTorch:
    """Says by the array API standard that torch makes its kind."""

    def __array_namespace__(self) -> Any:
        return torch


class Unknown:
    """Of a library that has no from_dlpack: this module."""
