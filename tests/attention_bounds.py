"""How far results of ``attention`` may be from float64: by the values, the scores and the dtype."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tvm_attention.accuracy import FLOAT32_ROUNDINGS, ROUNDING

Float64 = NDArray[np.float64]

# Bits of the significand, and the exponent of the least normal number's own unit.
_PRECISION = {"float32": (24, -149), "float16": (11, -24), "bfloat16": (8, -133)}
# A score of size s is known to about s roundings, which a softmax doubles.
_SCORE_ROUNDINGS = 2.0
# Weights that are averaged with have 16 bits where a result has 11, and 8 where it has 8, on a matrix unit;
# what the polynomial of 2**x adds to the latter is an eighth of that at most.
_WEIGHT_ERROR = {"float32": 0.0, "float16": 2.0**-15, "bfloat16": 2.0**-9 + 2.0**-12}


def half_unit(values: Float64, dtype: str) -> Float64:
    """Half a unit in the last place of each finite value, as rounding to the dtype costs at most."""
    bits, least = _PRECISION[dtype]
    _, exponents = np.frexp(np.where(np.isfinite(values), values, 1.0))
    return np.ldexp(0.5, np.maximum(exponents - bits, least))


def score_size(query: NDArray[Any], key: NDArray[Any], scale: float, *added: NDArray[Any]) -> float:
    """How large a product of a query and a key may become on the way, and the largest of each thing
    that is added to it."""
    longest = [np.linalg.norm(x.astype(np.float64), axis=-1).max(initial=0.0) for x in (query, key)]
    largest = (np.max(np.abs(x[np.isfinite(x)]), initial=0.0) for x in added)
    return float(abs(scale) * longest[0] * longest[1] + sum(largest))


def assert_near(
    found: NDArray[Any], expected: Float64, dtype: str, *, span: float, size: float, what: str
) -> None:
    """``span`` is the range of what is averaged, 1 for weights and for a log-sum-exp; ``size`` that of
    the scores. Infinities and NaN must be where they are expected."""
    assert str(found.dtype) == dtype, what
    assert found.shape == expected.shape, what
    got = found.astype(np.float64)
    sound = np.isfinite(expected)
    np.testing.assert_array_equal(got[~sound], expected[~sound], err_msg=what)
    got, expected = got[sound], expected[sound]
    limit = (FLOAT32_ROUNDINGS + _SCORE_ROUNDINGS * size) * ROUNDING * span
    limit += _WEIGHT_ERROR[dtype] * span
    # What was computed, not what is expected, was rounded: it may have the larger unit.
    allowed = limit + half_unit(np.abs(expected) + limit, dtype)
    worst = float(np.max(np.abs(got - expected) / allowed, initial=0.0))
    assert worst <= 1.0, f"{what}: an error of {worst:.3g} times what is allowed"
