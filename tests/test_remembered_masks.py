"""Repeated calls with a mask: its numbers are new each time."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from attention_cases import Array, query_key_value
from remembered_arrays import KINDS, Wrap
from repeated_calls import is_remembered, no_checks

from tvm_attention import attention, load, reference, scaled_dot_product_attention
from tvm_attention.workload import AttentionWorkload

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.usefixtures("no_calls_remembered")

# Each that a mask may have for scores (2, 4, 12, 20).
SHAPES = [(2, 1, 1, 20), (20,), (12, 20), (1, 4, 12, 1), (2, 4, 12, 20)]


def mask_of(shape: tuple[int, ...], dtype: str, seed: int) -> Any:
    rng = np.random.default_rng(seed)
    if dtype == "bool":
        seen = rng.random(shape) < 0.7
        seen[..., 0] = True
        return seen
    return rng.standard_normal(shape).astype(dtype)


def assert_masked(found: Any, arrays: tuple[Array, Array, Array], mask: Any) -> None:
    expected = reference.attention(*arrays, mask=mask)
    np.testing.assert_allclose(np.asarray(found), expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("dtype", ["bool", "float32"])
@pytest.mark.parametrize("wrap", KINDS)
def test_other_masks_of_one_layout_are_remembered(
    wrap: Wrap, dtype: str, shape: tuple[int, ...]
) -> None:
    arrays = query_key_value()
    wrapped = [wrap(x) for x in arrays]
    masks = [mask_of(shape, dtype, seed) for seed in range(3)]
    scaled_dot_product_attention(*wrapped, wrap(masks[0]))
    attention(*wrapped, mask=wrap(masks[0]))
    for mask in masks:
        given = wrap(mask.copy())
        with no_checks():
            found = scaled_dot_product_attention(*wrapped, given)
            again = attention(*wrapped, mask=given)
        assert_masked(found, arrays, mask)
        np.testing.assert_array_equal(np.asarray(again), np.asarray(found))


@pytest.mark.parametrize("wrap", KINDS)
def test_masks_of_other_layouts_are_other_calls(wrap: Wrap) -> None:
    arrays = query_key_value()
    wrapped = [wrap(x) for x in arrays]
    masks = [mask_of((12, 20), dtype, 1) for dtype in ("bool", "float32")]
    masks += [np.asfortranarray(masks[0]), np.broadcast_to(masks[1][:1], (12, 20)), masks[0][:1]]
    masks += [mask_of((n, 1, 1, 20), "bool", n) for n in (2, 1)]  # of equal strides
    masks += [mask_of((24, 20), "bool", 2)[::2], np.broadcast_to(masks[1][:, :1], (2, 4, 12, 20))]
    for repeated in (False, True):
        for mask in masks:
            given = mask if wrap is np.asarray else as_it_lies(mask)
            call = lambda m=given: scaled_dot_product_attention(*wrapped, m)  # noqa: E731
            assert is_remembered(call) == repeated
            assert_masked(call(), arrays, mask)
    without = scaled_dot_product_attention(*wrapped)
    assert_masked(without, arrays, None)


def as_it_lies(mask: Any) -> Any:
    """A tensor of the array's strides."""
    whole = torch.from_numpy(mask.base if mask.base is not None else mask)
    strides = [s // mask.itemsize for s in mask.strides]
    return torch.as_strided(whole, mask.shape, strides)


def test_copied_masks_are_not_remembered() -> None:
    """Of strides that are no whole elements: the copy has the numbers of one call."""
    arrays = query_key_value()
    fields = np.zeros((12, 20), [("mask", "f4"), ("other", "i1")])
    for seed in range(2):
        fields["mask"] = mask_of((12, 20), "float32", seed)
        call = lambda: scaled_dot_product_attention(*arrays, fields["mask"])  # noqa: E731
        assert not is_remembered(call)
        assert_masked(call(), arrays, fields["mask"])


@pytest.mark.parametrize("wrap", KINDS)
def test_kernels_remember_masks(wrap: Wrap) -> None:
    workload = AttentionWorkload(
        head_dim=16,
        value_dim=24,
        batch=2,
        query_heads=4,
        query_length=12,
        key_length=20,
        mask="bool",
    )
    kernel = load(workload)
    arrays = query_key_value()
    wrapped = [wrap(x) for x in arrays]
    first, second = (mask_of((2, 1, 12, 20), "bool", seed) for seed in range(2))
    kernel(*wrapped, mask=wrap(first))
    with no_checks():
        assert_masked(kernel(*wrapped, mask=wrap(second)), arrays, second)
    with pytest.raises(ValueError, match="options: expected those"):
        kernel(*wrapped)
