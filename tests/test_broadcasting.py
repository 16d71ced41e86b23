"""Leading axes that differ: which views stand for the inputs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tvm_attention import reference, scaled_dot_product_attention
from tvm_attention.arrays import ArrayKind, NumPyArrays, TorchTensors
from tvm_attention.broadcasting import broadcast

torch = pytest.importorskip("torch")

Shape = tuple[int, ...]


def broadcast_shapes(kind: ArrayKind, shapes: list[Shape], enable_gqa: bool) -> list[Shape]:
    arrays = [np.zeros((*s, n, 8), np.float32) for s, n in zip(shapes, (3, 6, 6), strict=True)]
    if isinstance(kind, TorchTensors):
        arrays = [torch.from_numpy(x) for x in arrays]
    found = broadcast(kind, (arrays[0], arrays[1], arrays[2]), enable_gqa=enable_gqa)
    for view, array, rows in zip(found, arrays, (3, 6, 6), strict=True):
        assert kind.shape(view)[-2:] == (rows, 8)
        assert kind.strides(view)[-2:] == (8, 1)
        assert kind.address(view) == kind.address(array)
        assert view is array or kind.shape(view) != kind.shape(array)
    return [kind.shape(x)[:-2] for x in found]


@pytest.mark.parametrize("kind", [NumPyArrays(), TorchTensors()])
@pytest.mark.parametrize(
    ("shapes", "gqa", "expected"),
    [
        ([(2, 4), (2, 4), (2, 4)], False, [(2, 4)] * 3),
        ([(4,), (2, 4), (2, 4)], False, [(2, 4)] * 3),
        ([(), (2, 4), (4,)], False, [(2, 4)] * 3),
        ([(2, 4), (1, 4), (2, 1)], False, [(2, 4)] * 3),
        ([(1, 4), (2, 1), (2, 1)], False, [(2, 4)] * 3),
        ([(3,), (1,), ()], False, [(3,)] * 3),
        ([(2, 6), (1, 3), (2, 3)], True, [(2, 6), (2, 3), (2, 3)]),
        ([(6,), (2, 3), (2, 1)], True, [(2, 6), (2, 3), (2, 3)]),
        ([(2, 6), (2, 3), (2, 3)], True, [(2, 6), (2, 3), (2, 3)]),
    ],
)
def test_axes_in_common(
    kind: ArrayKind, shapes: list[Shape], gqa: bool, expected: list[Shape]
) -> None:
    assert broadcast_shapes(kind, shapes, gqa) == expected


@pytest.mark.parametrize(
    ("shapes", "gqa"),
    [
        ([(2, 4), (3, 4), (3, 4)], False),
        ([(2, 6), (2, 3), (2, 3)], False),
        ([(2, 6), (3, 3), (3, 3)], True),
        ([(2, 6), (2, 3), (2, 2)], True),
        ([(), (2, 3), (2, 3)], True),
    ],
)
def test_what_does_not_fit_is_left_alone(shapes: list[Shape], gqa: bool) -> None:
    assert broadcast_shapes(NumPyArrays(), shapes, gqa) == shapes


AXES = (3, 2, 4, 7, 16)
MASKS = {
    "none": None,
    "keys": (5,),
    "of heads": (4, 1, 5),
    "of the last batch": (2, 1, 7, 5),
    "of the first batch": (3, 1, 1, 7, 5),
    "of all": (3, 2, 4, 7, 5),
    "of no batch": (1, 1, 4, 7, 5),
}


@pytest.mark.parametrize("wrap", [np.asarray, torch.from_numpy])
@pytest.mark.parametrize("mask", MASKS)
def test_more_axes_than_four(mask: str, wrap: Callable[[Any], Any]) -> None:
    rng = np.random.default_rng(0)
    query, key, value = (
        rng.standard_normal(shape).astype(np.float32)
        for shape in (AXES, (2, 4, 5, 16), (3, 1, 4, 5, 32))
    )
    query = np.moveaxis(query, 0, 1).copy().swapaxes(0, 1)  # axes that are not one in memory
    shape = MASKS[mask]
    seen = None if shape is None else rng.random(shape) < 0.7
    found = scaled_dot_product_attention(
        wrap(query), wrap(key), wrap(value), None if seen is None else wrap(seen), is_causal=True
    )
    assert type(found) is type(wrap(query))
    whole = None if seen is None else np.broadcast_to(seen, (*AXES[:-1], 5))
    for first, second in np.ndindex(AXES[:2]):
        expected = reference.attention(
            query[first, second][None], key[second][None], value[first, 0][None], causal="top_left",
            mask=None if whole is None else whole[first, second],
        )  # fmt: skip
        np.testing.assert_allclose(found[first, second][None], expected, rtol=0, atol=1e-5)


def test_more_axes_than_four_with_grouped_heads() -> None:
    rng = np.random.default_rng(1)
    query = rng.standard_normal(AXES).astype(np.float32)
    key = rng.standard_normal((3, 2, 2, 5, 16)).astype(np.float32)
    found = scaled_dot_product_attention(query, key, key, enable_gqa=True)
    folded = scaled_dot_product_attention(
        query.reshape(6, 4, 7, 16), *[key.reshape(6, 2, 5, 16)] * 2, enable_gqa=True
    )
    np.testing.assert_array_equal(found.reshape(6, 4, 7, 16), folded)
    nothing = scaled_dot_product_attention(query[:, :0], key[:, :0], key[:, :0], enable_gqa=True)
    assert nothing.shape == (3, 0, 4, 7, 16)
