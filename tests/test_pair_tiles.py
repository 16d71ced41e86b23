"""bfloat16 queries and values on their way to the matrix unit, by pairs: widths, ends, signs, NaN and Inf."""

from __future__ import annotations

import numpy as np
import pytest
from attention_variants import MATRIX, check
from numpy.typing import NDArray

from tvm_attention.random_calls import random_inputs
from tvm_attention.workload import AttentionWorkload

Array = NDArray[np.generic]
pytestmark = pytest.mark.skipif(not MATRIX, reason="this machine has no matrix unit (AMX)")


def tensors(head_dim: int, value_dim: int, rows: int, keys: int) -> tuple[Array, Array, Array]:
    w = AttentionWorkload(
        head_dim=head_dim, value_dim=value_dim, dtype="bfloat16", query_heads=2, kv_heads=1,
        query_length=rows, key_length=keys,
    )  # fmt: skip
    return random_inputs(w, seed=head_dim)


@pytest.mark.parametrize(
    ("head_dim", "value_dim"), [(1, 1), (3, 17), (33, 15), (40, 40), (63, 31), (80, 33), (96, 16)]
)
def test_widths_off_the_tile(head_dim: int, value_dim: int) -> None:
    """Odd ones too: the last pair has one number, the other half is no part of the row."""
    q, k, v = tensors(head_dim, value_dim, rows=37, keys=75)
    for scale in (0.3, -0.3):
        check("matrix", q, k, v, scale=scale)


@pytest.mark.parametrize("keys", [1, 2, 31, 32, 33, 63, 65])
@pytest.mark.parametrize("rows", [1, 15, 16, 17, 33])
def test_lengths_off_the_tile(rows: int, keys: int) -> None:
    check("matrix", *tensors(32, 32, rows, keys))


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("key", [0, 1, 40, 74])
def test_values_that_are_not_finite_stay_in_their_columns(key: int, bad: float) -> None:
    """Either half of a pair, and the last key, which padding repeats."""
    q, k, v = tensors(64, 48, rows=37, keys=75)
    clean, _ = check("matrix", q, k, v)
    spoilt = v.copy()
    spoilt[:, :, key, 5::16] = bad
    found, _ = check("matrix", q, k, spoilt, finite=(q, k, v))
    there = np.arange(48) % 16 == 5
    assert not np.isfinite(found[..., there].astype(np.float32)).any()
    np.testing.assert_array_equal(found[..., ~there], clean[..., ~there])


def test_the_largest_number_is_finite() -> None:
    q, k, v = tensors(64, 48, rows=37, keys=1)
    v[...] = np.float32(3.3e38)
    found, _ = check("matrix", q, k, v)
    assert np.isfinite(found.astype(np.float32)).all()
