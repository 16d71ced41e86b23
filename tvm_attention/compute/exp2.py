"""2**x as arithmetic that vectorises.

LLVM lowers llvm.exp2 of a vector to one libm call a lane; a polynomial is a handful of FMAs.
"""

from __future__ import annotations

from typing import Any

from tvm import tirx

from tvm_attention.compute.problem import Problem, float32

# Minimax fit of 2**r on [-1/2, 1/2] (relative error 1.9e-9), coefficients rounded to float32 and the
# constant one exact, so that the largest score of a row has weight 1.
POLYNOMIAL = (
    1.5345810470757160e-4,
    1.3399930903688073e-3,
    9.6184890717268e-3,
    5.5503286421298980e-2,
    2.4022646248340607e-1,
    6.9314718246459960e-1,
    1.0,
)

# Relative error bound of exp2 on [-100, 0] in float32: 1.4 roundings. Tested in tests/test_exp2.py.
RELATIVE_ERROR = 8.3e-8

# The same of a lower degree, for weights that a matrix unit takes fewer bits of: by the dtype of the inputs.
WEIGHT_POLYNOMIALS = {
    "float32": POLYNOMIAL,
    "float16": (
        9.582578204572201e-3,
        5.590682849287987e-2,
        2.402410656213760e-1,
        6.931241154670715e-1,
        1.0,
    ),
    "bfloat16": (5.500893294811249e-2, 2.422109544277191e-1, 6.932829022407532e-1, 1.0),
}
# Their relative error bounds.
WEIGHT_ERRORS = {"float32": RELATIVE_ERROR, "float16": 2.9e-6, "bfloat16": 1.02e-4}

# Below this the result is 2**LOWEST: a weight of 8e-31 next to one of 1 vanishes in float32, and, unlike
# one of 1e-38, its products with values are no denormals, which processors add a hundred times slower.
LOWEST = -100.0

# 1.5 * 2**23 + 127: adding it leaves round(x), as a float32's exponent field, in the mantissa's low bits.
_ROUND = 12583039.0


def exp2(x: Any, polynomial: tuple[float, ...] = POLYNOMIAL) -> Any:
    """2**x for x <= 0, within RELATIVE_ERROR for x >= LOWEST; NaN for a NaN.

    x is split into an integer n, read from the mantissa after adding _ROUND, and r in [-1/2, 1/2];
    the polynomial's value is multiplied by 2**n, a NaN of which stays one whatever its bits make of n.
    The round trip through int32 hides (x + m) - m from TVM's simplifier, which would cancel it. The range
    is cut by a comparison that lets NaN through, where tirx.max would not.
    """
    x = tirx.Select(x < float32(LOWEST), float32(LOWEST), x)
    shifted = x + float32(_ROUND)
    bits = tirx.reinterpret("int32", shifted)
    r = x - (tirx.reinterpret("float32", bits) - float32(_ROUND))
    p = float32(polynomial[0])
    for coefficient in polynomial[1:]:
        p = p * r + float32(coefficient)
    return p * tirx.reinterpret("float32", bits << tirx.const(23, "int32"))


def power(p: Problem, x: Any, polynomial: tuple[float, ...] = POLYNOMIAL) -> Any:
    """2**x for x <= 0 as the problem's machine computes it best."""
    return tirx.exp2(x) if p.exp2_unit else exp2(x, polynomial)
