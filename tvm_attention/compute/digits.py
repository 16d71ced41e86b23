"""Queries as sums of int8 digits, whose products with int8 keys are exact integers.

A row q is s (d1 + d2 / 254 + d3 / 254^2), s being a 127th of its largest number: three digits hold 24 bits of
that, so that scores are as near as those of float32. Digits are multiplied by SDOT
(tvm_attention.lowering.dots), or in pairs (tvm_attention.compute.digit_pairs).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from typing import Any

from tvm import te, tirx

from tvm_attention.compute.problem import float32

DIGITS = 3
RUN, LANES = 4, 4  # numbers that one lane of a product adds up, and lanes
BASE = 254.0
_MOST = 127.0
_LEAST = 2.0**-100  # rows of smaller numbers are taken for zero
_INFINITE = 0x7F800000


def digit_scores(QS: te.Tensor, outer: tuple[Any, ...], key: Callable[..., Any]) -> te.Tensor:
    """Stages QL, QM, QF, QI, QD, DOT and DF (..., row, lane): the lanes' sums of a product of ``QS`` (batch,
    kv_head, row, d) and a key, ``key(*index, d)`` as it is stored."""
    QD, QF = digits_of(QS)
    rows, depth = QS.shape[-2:]
    dd = te.reduce_axis((0, depth // (LANES * RUN)), "dd")
    y = te.reduce_axis((0, RUN), "y")

    def product(b: Any, h: Any, sp: Any, jo: Any, ji: Any, r: Any, n: Any, x: Any) -> Any:
        place = (dd * LANES + x) * RUN + y
        stored = tirx.Cast("int32", key(b, h, sp, jo, ji, place))
        return te.sum(stored * tirx.Cast("int32", QD[b, h, r, n, place]), axis=[dd, y])

    DOT = te.compute((*outer, rows, DIGITS, LANES), product, name="DOT")

    def lane(b: Any, h: Any, sp: Any, jo: Any, ji: Any, r: Any, x: Any) -> Any:
        first, second, third = (
            tirx.Cast("float32", DOT[b, h, sp, jo, ji, r, n, x]) for n in range(DIGITS)
        )
        small = (third * float32(1 / BASE) + second) * float32(1 / BASE)
        return (first + small) * QF[b, h, r]

    return te.compute((*outer, rows, LANES), lane, name="DF")


def digits_of(QS: te.Tensor) -> tuple[te.Tensor, te.Tensor]:
    """Stages QL, QM, QF, QI and QD: the digits of rows, and the factors of the first."""
    *heads, rows, depth = QS.shape
    d = te.reduce_axis((0, depth // LANES), "dq")
    QL = te.compute(
        (*heads, rows, LANES),
        lambda b, h, r, x: te.max(_magnitude(QS[b, h, r, d * LANES + x]), axis=d),
        name="QL",
    )
    QM = te.compute(
        (*heads, rows), lambda *i: reduce(tirx.max, (QL(*i, x) for x in range(LANES))), name="QM"
    )
    QF = te.compute(
        (*heads, rows),
        lambda *i: tirx.reinterpret("float32", QM[i]) * float32(1.0 / _MOST),
        name="QF",
    )
    QI = te.compute((*heads, rows), lambda *i: _digits_of_one(QM[i]), name="QI")
    QD = te.compute((*heads, rows, DIGITS, depth), lambda *i: _digit(QS, QI, *i), name="QD")
    return QD, QF


def _digits_of_one(largest: Any) -> Any:
    """What a row's numbers are multiplied by; zero for rows that are not finite, whose factor QF makes the
    scores NaN."""
    top = tirx.reinterpret("float32", largest)
    usable = tirx.all(top > float32(_LEAST), largest < tirx.const(_INFINITE, "int32"))
    return tirx.Select(usable, float32(_MOST) / top, float32(0.0))


def _digit(QS: te.Tensor, QI: te.Tensor, b: Any, h: Any, r: Any, n: Any, d: Any) -> Any:
    scale = QI[b, h, r]
    none = scale.equal(float32(0.0))
    rest = tirx.Select(none, float32(0.0), QS[b, h, r, d] * scale)
    digits = []
    for _ in range(DIGITS):
        digits.append(tirx.floor(rest + float32(0.5)))
        rest = (rest - digits[-1]) * float32(BASE)
    chosen = digits[-1]
    for number in reversed(range(DIGITS - 1)):
        chosen = tirx.Select(n.equal(number), digits[number], chosen)
    return tirx.Cast("int8", tirx.Cast("int32", chosen))


def _magnitude(x: Any) -> Any:
    """The bits of a number but its sign: their order is that of numbers, NaN last."""
    return tirx.reinterpret("int32", x) & tirx.const(0x7FFFFFFF, "int32")
