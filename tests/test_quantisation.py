"""int8 numbers and their scales: the formula, its bound, and what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from sequence_model import drawn, refuses

from tvm_attention import InvalidTypeError, InvalidValueError, quantise


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_a_scale_for_each_token(dtype: str) -> None:
    array = drawn(np.random.default_rng(0), 2, 3, 5, 16, dtype=dtype)
    numbers, scales = quantise(array)
    exact = array.astype(np.float64)
    assert (numbers.dtype, numbers.shape) == (np.int8, array.shape)
    assert (scales.dtype, scales.shape) == (np.float32, (2, 3, 5))
    np.testing.assert_allclose(scales, np.abs(exact).max(axis=-1) / 127, rtol=1e-6)
    assert (np.abs(numbers).max(axis=-1) == 127).all()
    error = np.abs(numbers * scales[..., None].astype(np.float64) - exact)
    assert (error <= scales[..., None] * (0.5 + 1e-5)).all()


def test_a_scale_for_each_head() -> None:
    array = np.array([[[1.0, -1.0, 0.25, 300.0]], [[0.5, 1.5, 2.5, -2e38]], [[1.0, 2, 3, 4]]], "f4")
    numbers, scales = quantise(array, [0.5, 1.0, 0.0])
    assert scales.tolist() == [0.5, 1.0, 0.0]
    # Halves go to the even neighbour, what is too large is cut off, a scale of 0 gives zeros.
    assert numbers.tolist() == [[[2, -2, 0, 127]], [[0, 2, 2, -127]], [[0, 0, 0, 0]]]


def test_zeros_and_tiny_numbers() -> None:
    array = np.array([[[0.0, 0.0], [1e-45, 0.0], [3e38, -3e38]]], np.float32)
    numbers, scales = quantise(array)
    assert np.isfinite(scales).all()
    assert numbers.tolist() == [[[0, 0], [0, 0], [127, -127]]]


def test_torch_tensors() -> None:
    torch = pytest.importorskip("torch")
    tensor = torch.randn(2, 3, 4, generator=torch.Generator().manual_seed(0)).to(torch.bfloat16)
    numbers, scales = quantise(tensor)
    again, same = quantise(tensor.float().numpy())
    np.testing.assert_array_equal(numbers, again)
    np.testing.assert_array_equal(scales, same)


@pytest.mark.parametrize(
    ("array", "scale", "error", "words"),
    [
        (np.ones((2, 3, 4), np.float64), None, InvalidTypeError, "array: expected float32 or"),
        (np.ones((3, 4), np.float32), None, InvalidValueError, r"\(..., heads, rows, dim\)"),
        (np.full((1, 1, 2), np.nan, np.float32), None, InvalidValueError, "NaN or Inf"),
        (np.full((1, 1, 2), -np.inf, np.float32), [1.0], InvalidValueError, "NaN or Inf"),
        (np.ones((2, 3, 4), np.float32), [1.0], InvalidValueError, r"scale: expected shape \(2,\)"),
        (np.ones((2, 3, 4), np.float32), [1.0, np.inf], InvalidValueError, "finite numbers"),
        (np.ones((2, 3, 4), np.float32), [-1.0, 1.0], InvalidValueError, "at least 0"),
        ([[[1.0]]], None, InvalidTypeError, "expected a NumPy array"),
    ],
)
def test_what_is_refused(array: Any, scale: Any, error: type[Exception], words: str) -> None:
    refuses(error, words, lambda: quantise(array, scale))
