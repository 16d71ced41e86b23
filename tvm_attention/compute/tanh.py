"""tanh as arithmetic that vectorises."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from tvm import tirx

from tvm_attention.compute.binding import bound
from tvm_attention.compute.exp2 import exp2
from tvm_attention.compute.problem import float32

# tanh(x) = x + x**3 P(x**2) on [-5/8, 5/8]: coefficients of tanhf in the Cephes library (S. Moshier, 1992).
POLYNOMIAL = (
    -5.70498872745e-3,
    2.06390887954e-2,
    -5.37397155531e-2,
    1.33314422036e-1,
    -3.33332819422e-1,
)
_SMALL = 0.625


def tanh(x: Any, power: Callable[[Any], Any] = exp2) -> Any:
    """tanh(x) to about two float32 roundings; NaN for a NaN. ``power`` computes 2**x for x <= 0.

    Near zero a polynomial, beyond (1 - e) / (1 + e) with e = exp(-2 |x|), which alone would lose the
    small ones to cancellation.
    """
    return bound(x, lambda x: _tanh(x, power))


def _tanh(x: Any, power: Callable[[Any], Any]) -> Any:
    size = tirx.Select(x < float32(0.0), -x, x)
    square = x * x
    p = float32(POLYNOMIAL[0])
    for coefficient in POLYNOMIAL[1:]:
        p = p * square + float32(coefficient)
    near = x + x * square * p

    def ended(ratio: Any) -> Any:
        far = tirx.Select(x < float32(0.0), -ratio, ratio)
        return tirx.Select(size < float32(_SMALL), near, far)

    one = float32(1.0)
    e = power(size * float32(-2.0 * math.log2(math.e)))
    return bound(e, lambda e: bound((one - e) / (one + e), ended))
