"""Operands: which shapes, dtypes, scales and thread counts fit, and what the errors say."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tvm_attention.arrays import NumPyArrays
from tvm_attention.errors import (
    AttentionError,
    InvalidTypeError,
    InvalidValueError,
    UnsupportedError,
)
from tvm_attention.operands import (
    Geometry,
    check_scale,
    check_threads,
    geometry,
    kernel_strides,
    opened_inputs,
)

Shape = tuple[int, ...]


@pytest.mark.parametrize(
    ("shapes", "sizes", "out_shape"),
    [
        (((2, 8, 5, 64), (2, 2, 7, 64), (2, 2, 7, 32)), (4, 2, 8, 2, 5, 7, 64, 32), (2, 8, 5, 32)),
        (((3, 5, 64), (3, 7, 64), (3, 7, 32)), (3, 3, 1, 1, 5, 7, 64, 32), (3, 5, 32)),
        (((5, 64), (7, 64), (7, 32)), (2, 1, 1, 1, 5, 7, 64, 32), (5, 32)),
    ],
)
def test_extents(shapes: tuple[Shape, Shape, Shape], sizes: Shape, out_shape: Shape) -> None:
    found = geometry(*shapes, enable_gqa=True)
    assert found == Geometry(*sizes)
    assert found.out_shape == out_shape
    assert not found.empty


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_nothing_to_compute(axis: int) -> None:
    query, key = [2, 3, 4, 8], [2, 3, 5, 8]
    query[axis] = 0
    if axis < 2:
        key[axis] = 0
    found = geometry(tuple(query), tuple(key), tuple(key), enable_gqa=False)
    assert found.empty
    assert found.out_shape == tuple(query)


def test_no_value_columns_and_no_keys() -> None:
    assert geometry((4, 8), (5, 8), (5, 0), enable_gqa=False).empty
    found = geometry((4, 8), (0, 8), (0, 8), enable_gqa=False)
    assert not found.empty
    assert found.key_length == 0


def test_head_dimension_zero_where_no_score_is_needed() -> None:
    for query, key in (((0, 2, 0), (0, 3, 0)), ((1, 0, 0), (1, 3, 0)), ((1, 2, 0), (1, 0, 0))):
        geometry(query, key, (*key[:-1], 4), enable_gqa=False)
    with pytest.raises(InvalidValueError, match=r"last axis of at least 1, got shape \(2, 0\)"):
        geometry((2, 0), (3, 0), (3, 4), enable_gqa=False)


FOUR = (2, 4, 5, 8)
BAD_SHAPES: dict[str, tuple[Shape, Shape, Shape, type[AttentionError], str]] = {
    "no axes": ((), (), (), InvalidValueError, r"2 to 4 axes .*got shape \(\)"),
    "one axis": ((8,), (8,), (8,), InvalidValueError, r"2 to 4 axes .*got shape \(8,\)"),
    "five axes": ((1, *FOUR),) * 3 + (InvalidValueError, r"2 to 4 axes .*got shape \(1, 2, 4, 5"),
    "key's axes": (FOUR, FOUR[1:], FOUR, InvalidValueError, r"as many axes each, got \(2, 4"),
    "value's axes": (FOUR, FOUR, FOUR[1:], InvalidValueError, r"as many axes each, got \(2, 4"),
    "key's batch": (FOUR, (3, 4, 5, 8), FOUR, InvalidValueError, "batch.*query 2, key 3, value 2"),
    "value's batch": (FOUR, FOUR, (1, 4, 5, 8), InvalidValueError, "query 2, key 2, value 1"),
    "value's heads": (FOUR, FOUR, (2, 2, 5, 8), InvalidValueError, "heads.*got 4 and 2"),
    "key's dim": (FOUR, (2, 4, 5, 7), FOUR, InvalidValueError, "query 8 and key 7"),
    "lengths": (FOUR, (2, 4, 6, 8), FOUR, InvalidValueError, "length.*got 6 and 5"),
    "ratio": (FOUR, (2, 3, 5, 8), (2, 3, 5, 8), InvalidValueError, "multiple.*got 4 and 3"),
    "more key heads": (FOUR, (2, 8, 5, 8), (2, 8, 5, 8), InvalidValueError, "got 4 and 8"),
    "no key heads": (FOUR, (2, 0, 5, 8), (2, 0, 5, 8), InvalidValueError, "got 4 and 0"),
    "dim": ((2, 513), (3, 513), (3, 8), UnsupportedError, "query.*at most 512, got 513"),
    "value's dim": ((2, 8), (3, 8), (3, 513), UnsupportedError, "value.*at most 512, got 513"),
    "length": ((2**31, 8), (3, 8), (3, 8), UnsupportedError, "at most 2147483647, got"),
}


@pytest.mark.parametrize("what", BAD_SHAPES)
def test_shapes_that_do_not_fit(what: str) -> None:
    query, key, value, error, message = BAD_SHAPES[what]
    with pytest.raises(error, match=message) as raised:
        geometry(query, key, value, enable_gqa=True)
    assert ": expected " in str(raised.value)


def test_grouped_queries_must_be_asked_for() -> None:
    with pytest.raises(InvalidValueError, match=r"query 4 and key 2; pass enable_gqa=True"):
        geometry(FOUR, (2, 2, 5, 8), (2, 2, 5, 8), enable_gqa=False)


BAD_DTYPES = [
    ("float64", UnsupportedError),
    ("int32", InvalidTypeError),
    ("uint8", InvalidTypeError),
    ("bool", InvalidTypeError),
    ("complex64", InvalidTypeError),
    (">f4", InvalidTypeError),
    ("object", InvalidTypeError),
    ("U1", InvalidTypeError),
]


@pytest.mark.parametrize(("dtype", "error"), BAD_DTYPES)
def test_dtypes_that_are_not_computed(dtype: str, error: type[AttentionError]) -> None:
    array = np.zeros((2, 3), dtype)
    with pytest.raises(
        error, match=f"dtype: expected float32 or .*bfloat16, got {array.dtype}; convert"
    ):
        opened_inputs(NumPyArrays(), array, array, array)


@pytest.mark.parametrize("place", [0, 1, 2])
def test_dtypes_must_be_one(place: int) -> None:
    arrays = [np.zeros((2, 3), np.float32)] * 3
    arrays[place] = np.zeros((2, 3), np.float16)
    with pytest.raises(InvalidTypeError, match=r"dtype: expected one, got query .*float16"):
        opened_inputs(NumPyArrays(), *arrays)


@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16])
def test_inputs_of_numpy_are_taken_as_they_are(dtype: Any) -> None:
    arrays = tuple(np.zeros((2, 3), dtype) for _ in range(3))
    opened = opened_inputs(NumPyArrays(), *arrays)
    assert all(x is y for x, y in zip(opened, arrays, strict=True))


@pytest.mark.parametrize(
    ("given", "scale"),
    [
        (None, 1 / math.sqrt(48)),
        (0.0, 0.0),
        (-2.5, -2.5),
        (1, 1.0),
        (1e-300, 1e-300),
        (2.0**127, 2.0**127),
        (np.float32(0.5), 0.5),
        (np.int64(3), 3.0),
        (np.array(0.25), 0.25),
        (Fraction(1, 4), 0.25),
    ],
)
def test_scales(given: Any, scale: float) -> None:
    found = check_scale(given, 48)
    assert type(found) is float
    assert found == scale


@pytest.mark.parametrize("given", [math.nan, math.inf, -math.inf, 2.0**128, -1e300, 10**400])
def test_scales_that_are_no_finite_float32(given: float) -> None:
    with pytest.raises(InvalidValueError, match=r"scale: expected a finite .*got -?(nan|inf|\d)"):
        check_scale(given, 48)


@pytest.mark.parametrize("given", ["0.5", b"1", True, [0.5], (), {}, 1j, np.ones(2), object()])
def test_scales_that_are_no_number(given: Any) -> None:
    with pytest.raises(InvalidTypeError, match="scale: expected a number or None, got "):
        check_scale(given, 48)


@pytest.mark.parametrize(
    ("strides", "expected"),
    [((96, 32, 8, 1), (96, 32, 8)), ((32, -8, 1), (32, 0, -8)), ((8, 1), (0, 0, 8))],
)
def test_kernel_strides(strides: Shape, expected: Shape) -> None:
    assert kernel_strides(strides) == expected


def test_numbers_of_threads() -> None:
    check_threads(None)
    check_threads(1)
    for none in (0, -1):
        with pytest.raises(
            InvalidValueError, match=f"num_threads: expected at least 1, got {none}"
        ):
            check_threads(none)
    for other in (1.0, "2", True):
        with pytest.raises(InvalidTypeError, match="num_threads: expected an int, got "):
            check_threads(other)  # type: ignore[arg-type]
