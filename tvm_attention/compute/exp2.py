"""2**x as arithmetic that vectorises.

LLVM lowers llvm.exp2 of a vector to one libm call a lane; a polynomial is a handful of FMAs. It is that of
what an integer n leaves of x; the rest is to multiply by 2**n. Processors with AVX-512 have an instruction
for either end of it, others take the integer from the bits of a sum.
"""

from __future__ import annotations

from typing import Any

from tvm import tirx

from tvm_attention.compute.elementwise import elementwise
from tvm_attention.compute.problem import Exponent, Problem, float32
from tvm_attention.device_code import POWER_OF_TWO

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

# The same on [0, 1).
_SCALED_POLYNOMIAL = (
    2.161291631637141e-4,
    1.2467845808714628e-3,
    9.675451554358006e-3,
    5.5485282093286514e-2,
    2.402293086051941e-1,
    6.931470632553101e-1,
    1.0,
)

# Relative error bound of exp2 on [-100, 0] in float32: 1.4 roundings. Tested in tests/test_exp2.py.
RELATIVE_ERROR = 8.5e-8

# Those of a lower degree, for weights that a matrix unit takes fewer bits of: by the dtype of the inputs.
_POLYNOMIALS = {
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
_SCALED_POLYNOMIALS = {
    "float32": _SCALED_POLYNOMIAL,
    "float16": (
        1.3426682911813259e-2,
        5.2242476493120193e-2,
        2.41280198097229e-1,
        6.930448412895203e-1,
        1.0,
    ),
    "bfloat16": (7.70670473575592e-2, 2.2764497995376587e-1, 6.951168179512024e-1, 1.0),
}
# Relative error bounds of either.
WEIGHT_ERRORS = {"float32": RELATIVE_ERROR, "float16": 3.0e-6, "bfloat16": 1.02e-4}

# Below this the result is 2**LOWEST: a weight of 8e-31 next to one of 1 vanishes in float32, and, unlike
# one of 1e-38, neither it nor its products with values are denormals, which cost a hundred times more.
LOWEST = -100.0

# 1.5 * 2**23 + 127: adding it leaves round(x), as a float32's exponent field, in the mantissa's low bits.
_ROUND = 12583039.0

# Of numbers x; tvm_attention.lowering.instructions makes instructions of them.
FRACTION = elementwise("tvm_attention.fraction")  # (x): x - floor(x)
SCALED = elementwise("tvm_attention.scaled")  # (p, x): p * 2**floor(x)


def exp2(x: Any, precision: str = "float32", exponent: Exponent = "bits") -> Any:
    """2**x for x <= 0, within WEIGHT_ERRORS[precision] for x >= LOWEST; NaN for a NaN.

    The range is cut by a comparison that lets NaN through, where tirx.max would not.
    """
    if exponent == "unit":
        return tirx.call_pure_extern("float32", POWER_OF_TWO, x)
    x = tirx.Select(x < float32(LOWEST), float32(LOWEST), x)
    if exponent == "instructions":
        fraction = tirx.call_intrin("float32", FRACTION, x)
        p = _horner(_SCALED_POLYNOMIALS[precision], fraction)
        return tirx.call_intrin("float32", SCALED, p, x)
    # A NaN times 2**n stays one whatever its bits make of n. The round trip through int32 hides (x + m) - m
    # from TVM's simplifier, which would cancel it.
    bits = tirx.reinterpret("int32", x + float32(_ROUND))
    r = x - (tirx.reinterpret("float32", bits) - float32(_ROUND))
    p = _horner(_POLYNOMIALS[precision], r)
    return p * tirx.reinterpret("float32", bits << tirx.const(23, "int32"))


def power(p: Problem, x: Any, precision: str = "float32") -> Any:
    """2**x for x <= 0 as the problem's machine computes it best."""
    return exp2(x, precision, p.exponent)


def _horner(coefficients: tuple[float, ...], x: Any) -> Any:
    p = float32(coefficients[0])
    for coefficient in coefficients[1:]:
        p = p * x + float32(coefficient)
    return p
