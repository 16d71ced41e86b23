"""Leading axes that differ: which views stand for the inputs."""

from __future__ import annotations

import numpy as np
import pytest

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
