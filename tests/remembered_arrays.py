"""Arrays for calls on attention_cases.query_key_value() that give out, and their kernels."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tvm_attention import Kernel, load, reference
from tvm_attention.workload import AttentionWorkload

torch = pytest.importorskip("torch")

Wrap = Callable[[Any], Any]
KINDS = [pytest.param(np.asarray, id="numpy"), pytest.param(torch.from_numpy, id="torch")]
SHAPE = (2, 4, 12, 24)


def kernel_for(**features: Any) -> Kernel:
    sizes = {"batch": 2, "query_heads": 4, "query_length": 12, "key_length": 20}
    return load(AttentionWorkload(head_dim=16, value_dim=24, **sizes, **features))


def nothing(wrap: Wrap, shape: tuple[int, ...] = SHAPE) -> Any:
    return wrap(np.full(shape, np.nan, np.float32))


def assert_attended(found: Any, arrays: Any, **options: Any) -> None:
    expected = reference.attention(*arrays, **options)
    np.testing.assert_allclose(np.asarray(found), expected, rtol=0, atol=1e-5)


class Memory:
    """One piece of memory for query, key, value, mask and out, each at the place it is asked for."""

    SHAPES = ((2, 4, 12, 16), (2, 4, 20, 16), (2, 4, 20, 24), (2, 4, 12, 20), SHAPE)

    def __init__(self, wrap: Wrap) -> None:
        self.numbers = np.random.default_rng(0).standard_normal(40000).astype(np.float32)
        self.wrap = wrap

    def at(self, place: int, number: int) -> Any:
        shape = self.SHAPES[number]
        return self.wrap(self.numbers[place : place + int(np.prod(shape))].reshape(shape))
