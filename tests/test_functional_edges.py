"""The function at the edges: sizes, head dimensions, causal rows, scales, values that are extreme."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from attention_cases import Array, assert_right, query_key_value, unit_normal

from tvm_attention import scaled_dot_product_attention

torch = pytest.importorskip("torch")


def attend(*arrays: Array, **options: Any) -> Array:
    """The result, which torch must get bit by bit as well."""
    found: Array = scaled_dot_product_attention(*arrays, **options)
    tensors = [torch.from_numpy(np.ascontiguousarray(x)) for x in arrays]
    again = scaled_dot_product_attention(*tensors, **options)
    np.testing.assert_array_equal(again.numpy(), found)
    return found


# Below, at and above vectors of 4, 8 and 16, sizes that models have, and the largest.
HEAD_DIMS = [1, 3, 8, 15, 17, 31, 40, 96, 127, 200, 511, 512]


@pytest.mark.parametrize("dim", HEAD_DIMS)
def test_head_dimensions(dim: int) -> None:
    causal = dim % 2 == 0
    q, k, v = (unit_normal(1, 2, n, dim, seed=n) for n in (11, 37, 37))
    assert_right(attend(q, k, v, is_causal=causal), q, k, v, causal="top_left" if causal else None)


@pytest.mark.parametrize("dim", [1, 7, 64, 129, 512])
def test_head_dimensions_in_decoding(dim: int) -> None:
    q, k, v = (unit_normal(1, 2, n, dim, seed=n) for n in (1, 300, 300))
    assert_right(attend(q, k, v), q, k, v)


@pytest.mark.parametrize("dims", [(1, 7), (7, 1), (64, 33), (8, 512), (512, 3)])
@pytest.mark.parametrize("rows", [1, 11])
def test_value_dimensions_that_differ(dims: tuple[int, int], rows: int) -> None:
    q, k = unit_normal(1, 2, rows, dims[0]), unit_normal(1, 2, 37, dims[0])
    v = unit_normal(1, 2, 37, dims[1], seed=3)
    assert_right(attend(q, k, v), q, k, v)


@pytest.mark.parametrize("shape", [(0, 4, 12), (2, 0, 12), (2, 4, 0), (0, 0, 0)])
def test_nothing_to_compute(shape: tuple[int, int, int]) -> None:
    q = np.zeros((*shape, 16), np.float32)
    k = np.zeros((*shape[:2], 20, 16), np.float32)
    for causal in (False, True):
        assert attend(q, k, k, is_causal=causal).shape == q.shape
    assert attend(q[..., :0], k[..., :0], k).shape == q.shape


def test_no_value_columns() -> None:
    q, k, v = query_key_value()
    assert attend(q, k, v[..., :0]).shape == (2, 4, 12, 0)


@pytest.mark.parametrize("kv_heads", [4, 1])
def test_no_keys_give_zeros(kv_heads: int) -> None:
    q, k, v = query_key_value(kv_heads=kv_heads)
    for causal in (False, True):
        found = attend(q, k[:, :, :0], v[:, :, :0], is_causal=causal, enable_gqa=kv_heads < 4)
        np.testing.assert_array_equal(found, np.zeros((2, 4, 12, 24), np.float32))


@pytest.mark.parametrize("rows", [1, 12])
def test_one_key_gives_its_value(rows: int) -> None:
    q, k, v = query_key_value(rows=rows, keys=1)
    np.testing.assert_array_equal(attend(q, k, v), np.broadcast_to(v, (2, 4, rows, 24)))


@pytest.mark.parametrize(("rows", "keys"), [(1, 9), (3, 20), (40, 20), (20, 300), (300, 20)])
def test_causal_is_top_left(rows: int, keys: int) -> None:
    q, k, v = query_key_value(rows=rows, keys=keys)
    found = attend(q, k, v, is_causal=True)
    assert_right(found, q, k, v, causal="top_left")
    np.testing.assert_array_equal(found[:, :, 0], v[:, :, 0])
    shorter = attend(q[:, :, :1], k[:, :, :1], v[:, :, :1])
    np.testing.assert_array_equal(found[:, :, :1], shorter)


@pytest.mark.parametrize(("heads", "kv_heads"), [(4, 2), (6, 2), (12, 1), (9, 3)])
@pytest.mark.parametrize("rows", [1, 12])
def test_grouped_queries(heads: int, kv_heads: int, rows: int) -> None:
    q, k, v = query_key_value(heads, kv_heads, rows, 100)
    for causal in (False, True):
        found = attend(q, k, v, is_causal=causal, enable_gqa=True)
        assert_right(found, q, k, v, causal="top_left" if causal else None)
    equal = query_key_value(rows=rows)
    np.testing.assert_array_equal(attend(*equal, enable_gqa=True), attend(*equal))


@pytest.mark.parametrize("rows", [1, 12])
@pytest.mark.parametrize("scale", [0.0, -0.25, 1e-30, -1e-300, 0.3, 1])
def test_scales(scale: float, rows: int) -> None:
    q, k, v = query_key_value(rows=rows)
    for causal in (False, True):
        q, k = (q / 4, k / 4) if abs(scale) == 1 else (q, k)  # scores of unit scale
        found = attend(q, k, v, is_causal=causal, scale=scale)
        assert_right(found, q, k, v, causal="top_left" if causal else None, scale=scale)


@pytest.mark.parametrize("rows", [1, 12])
def test_scales_are_numbers_of_any_kind(rows: int) -> None:
    q, k, v = query_key_value(rows=rows)
    expected = attend(q, k, v, scale=0.5)
    scale = np.array(0.5, np.float32)
    for same in (np.float32(0.5), scale, torch.tensor(0.5), torch.tensor([0.5])):
        np.testing.assert_array_equal(attend(q, k, v, scale=same), expected)
    scale[...] = 0.25  # a remembered call must not keep the old one
    np.testing.assert_array_equal(attend(q, k, v, scale=scale), attend(q, k, v, scale=0.25))
    np.testing.assert_array_equal(attend(q, k, v, scale=1), attend(q, k, v, scale=1.0))
    for causal in (np.True_, np.False_):
        found = attend(q, k, v, is_causal=causal, dropout_p=np.float32(0.0))
        np.testing.assert_array_equal(found, attend(q, k, v, is_causal=bool(causal), dropout_p=0))


@pytest.mark.parametrize("rows", [1, 12])
@pytest.mark.parametrize("size", [1e4, 1e6, 1e20, 3e37])
def test_huge_logits_of_either_sign(size: float, rows: int) -> None:
    q, k, v = query_key_value(rows=rows)
    q[...], k[...] = 0.0, 0.0
    q[..., 0], k[..., 0] = 1.0, np.linspace(-size, size, 20, dtype=np.float32)
    for sign, seen in ((1.0, 19), (-1.0, 0)):
        found = attend(sign * q, k, v)
        np.testing.assert_array_equal(found, np.broadcast_to(v[:, :, seen, None], found.shape))
        k_equal = np.where(k == 0, k, np.float32(sign * size))
        mean = np.broadcast_to(v.mean(2, dtype=np.float64)[:, :, None], found.shape)
        np.testing.assert_allclose(attend(q, k_equal, v), mean, rtol=0, atol=2e-6)


@pytest.mark.parametrize("rows", [1, 12])
def test_values_of_any_size(rows: int) -> None:
    q, k, v = query_key_value(rows=rows)
    expected = attend(q, k, v)
    for power in (-100, 100):
        scaled = attend(q, k, v * np.float32(2.0**power))
        np.testing.assert_array_equal(scaled, expected * np.float32(2.0**power))
    ones = attend(q, k, np.ones_like(v))
    assert np.abs(ones - 1).max() < 1e-6  # weights sum to one


@pytest.mark.parametrize("rows", [2, 12])
@pytest.mark.parametrize("causal", [False, True])
def test_a_nan_in_a_query_stays_in_its_row(rows: int, causal: bool) -> None:
    q, k, v = query_key_value(rows=rows)
    expected = attend(q, k, v, is_causal=causal)
    q[1, 2, 1, 5] = np.nan
    found = attend(q, k, v, is_causal=causal)
    assert np.isnan(found[1, 2, 1]).all()
    found[1, 2, 1] = expected[1, 2, 1]
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("rows", [1, 12])
def test_a_nan_in_a_key_or_value_stays_in_its_head(rows: int) -> None:
    q, k, v = query_key_value(rows=rows)
    expected = attend(q, k, v)
    for spoiled in (1, 2):
        arrays = [q, k, v]
        arrays[spoiled] = arrays[spoiled].copy()
        arrays[spoiled][1, 2, 13] = np.nan
        found = attend(*arrays)
        assert np.isnan(found[1, 2]).all()
        found[1, 2] = expected[1, 2]
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("shape", [(70_000, 1), (1, 70_000)])
def test_more_heads_than_sixteen_bits_count(shape: tuple[int, int]) -> None:
    q, k, v = (unit_normal(*shape, n, 4, seed=n) for n in (1, 3, 2))
    found = attend(q, k[:, :, :2], v)
    assert_right(found, q, k[:, :, :2], v)


def test_heads_and_batches_do_not_depend_on_each_other() -> None:
    q, k, v = query_key_value(rows=40, keys=130)
    whole = attend(q, k, v)
    for b, h in np.ndindex(2, 4):
        alone = attend(*(x[b : b + 1, h : h + 1] for x in (q, k, v)))
        np.testing.assert_array_equal(alone, whole[b : b + 1, h : h + 1])


def test_the_order_of_keys_does_not_matter() -> None:
    q, k, v = query_key_value(rows=40, keys=130)
    order = np.random.default_rng(1).permutation(130)
    assert_right(attend(q, k[:, :, order], v[:, :, order]), q, k, v)
