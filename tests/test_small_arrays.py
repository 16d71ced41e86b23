"""Lengths, offsets and slopes come in any form that holds numbers, and only in such."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from sequence_model import refuses

from tvm_attention import InvalidTypeError
from tvm_attention.small_arrays import floats, whole_numbers


def test_whole_numbers_of_any_form() -> None:
    torch = pytest.importorskip("torch")
    for given in ([3, 0], (3, 0), np.array([3, 0], np.uint8), torch.tensor([3, 0])):
        found = whole_numbers("lengths", given)
        assert found.tolist() == [3, 0]
        assert found.dtype.kind in "iu"
    assert whole_numbers("lengths", []).size == 0


def test_floats_are_a_float32_copy() -> None:
    given = np.array([1.5, 1e300, -np.inf])
    found = floats("slopes", given)
    assert found.dtype == np.float32
    assert found.tolist() == [1.5, np.inf, -np.inf]
    single = np.ones(2, np.float32)
    assert not np.shares_memory(floats("slopes", single), single)
    assert floats("slopes", [1, 2]).tolist() == [1.0, 2.0]


@pytest.mark.parametrize("given", [[1.0], [True], "12", [[1], [2, 3]], object()])
def test_what_is_no_whole_number(given: Any) -> None:
    refuses(InvalidTypeError, "lengths: expected", lambda: whole_numbers("lengths", given))


@pytest.mark.parametrize("given", [[True], "12", [1j], None])
def test_what_is_no_number(given: Any) -> None:
    refuses(InvalidTypeError, "slopes: expected", lambda: floats("slopes", given))
