"""float32 numbers as sums of bfloat16 pieces, which matrix units multiply.

A piece is the upper half of what the pieces before it left over: three hold the 24 bits of a float32's
significand, two the 11 of a float16's, one is a bfloat16 itself. Of the products of pieces a_m b_n those
with a small m + n are taken; what is left out is below a rounding (Henry, Tang and Heinecke, "Leveraging the
bfloat16 Artificial Intelligence Datatype For Higher-Precision Computations", 2019).
"""

from __future__ import annotations

from typing import Any

from tvm import tirx

from tvm_attention.compute.elementwise import elementwise
from tvm_attention.compute.operand import is_finite, is_nan
from tvm_attention.compute.problem import float32

# Of an operand stored as this dtype.
PIECES = {"float32": 3, "float16": 2, "bfloat16": 1}
# Of the weights, whose last bits a result of this dtype does not have.
WEIGHT_PIECES = {"float32": 3, "float16": 2, "bfloat16": 1}

_UPPER = 0xFFFF0000
_HALF = 0x00008000  # of the last bit of the upper half
_SIGN = 0x80000000
_LEAST = 0x00800000  # the least number that a matrix unit does not take for zero
_QUIET_NAN = 0x7FC00000
_EXPONENT = 0x7F80  # of a stored piece
# An operator of one element, (lower, x): lower | (x & 0xFFFF0000), an instruction by
# tvm_attention.lowering.instructions. LLVM would make one of a pair's shift and merging, a permutation that
# costs more than both.
MERGED = elementwise("tvm_attention.merged")
NO_PIECE = tirx.const(0, "uint16")


def piece(x: Any, number: Any, count: int) -> Any:
    """Piece ``number`` (an index expression) of ``count``, as a float32 of which the upper half counts."""
    return _chosen(number, _left(x, count))


def rounded(x: Any) -> Any:
    """A float32 number of which the upper half is x rounded to the nearest bfloat16, halves away from zero.

    A NaN whose bits are all ones becomes zero: the sum of such weights is NaN, and so the result.
    """
    return tirx.reinterpret("float32", bits(x) + _uint32(_HALF))


def factor_piece(x: Any, number: Any, count: int) -> Any:
    """The same of a query: no piece of a number but zero is zero, so that its product with an infinite
    key is infinite and no NaN."""
    left = _left(x, count)
    sign = bits(x) & _uint32(_SIGN)
    least = tirx.reinterpret("float32", sign | _uint32(_LEAST))
    zero = float32(0.0)
    rest = [
        tirx.Select(tirx.all(y.equal(zero), tirx.Not(x.equal(zero))), least, y) for y in left[1:]
    ]
    return _chosen(number, [left[0], *rest])


def stored_piece(x: Any, number: Any, count: int) -> Any:
    """The same of a key or value, as it is stored (uint16): infinite and NaN numbers have one piece."""
    first, *rest = _left(x, count)
    none = float32(0.0)
    held = [
        tirx.Select(is_nan(x), _uint32(_QUIET_NAN), bits(first)),
        *(bits(tirx.Select(is_finite(x), y, none)) for y in rest),
    ]
    return tirx.Cast("uint16", _chosen(number, held) >> _uint32(16))


def pair(first: Any, second: Any, merged: bool = False) -> Any:
    """Two pieces in the halves of a uint32, the first in the lower one; ``merged``: by MERGED."""
    lower = bits(first) >> _uint32(16)
    if merged:
        return tirx.call_intrin("uint32", MERGED, lower, bits(second))
    return lower | (bits(second) & _uint32(_UPPER))


def beside(first: Any, second: Any) -> Any:
    """Two stored pieces as such a pair."""
    return tirx.Cast("uint32", first) | (tirx.Cast("uint32", second) << _uint32(16))


def signed(pair: Any, factor: Any) -> Any:
    """The pair times the sign of a float32."""
    sign = bits(factor) & _uint32(_SIGN)
    return pair ^ (sign | (sign >> _uint32(16)))


def finite(stored: Any) -> Any:
    """A stored piece, zero for NaN and Inf."""
    exponent = tirx.const(_EXPONENT, "uint16")
    return tirx.Select((stored & exponent) < exponent, stored, NO_PIECE)


def of_pair(stored: Any, number: Any) -> Any:
    """One of a pair's pieces (number 0 or 1) as a float32."""
    lower, upper = stored << _uint32(16), stored & _uint32(_UPPER)
    return tirx.reinterpret("float32", tirx.Select(number.equal(0), lower, upper))


def as_number(stored: Any) -> Any:
    """A stored piece (uint16) as a float32."""
    return tirx.reinterpret("float32", tirx.Cast("uint32", stored) << _uint32(16))


def bits(x: Any) -> Any:
    return tirx.reinterpret("uint32", x)


def _left(x: Any, count: int) -> list[Any]:
    """What is left of a number for each of its pieces."""
    left = [x]
    for _ in range(count - 1):
        x = x - tirx.reinterpret("float32", bits(x) & _uint32(_UPPER))
        left.append(x)
    return left


def _chosen(number: Any, options: list[Any]) -> Any:
    chosen = options[-1]
    for n, option in reversed(list(enumerate(options[:-1]))):
        chosen = tirx.Select(number.equal(n), option, chosen)
    return chosen


def _uint32(value: int) -> Any:
    return tirx.const(value, "uint32")
