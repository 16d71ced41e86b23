"""Queries as sums of int8 digits, whose products with int8 keys are exact integers.

A row q is s (d1 + d2 / 254 + d3 / 254^2), s being a 127th of its largest number: three digits hold 24 bits of
that, so that scores are as near as those of float32. Digits are multiplied by SDOT, or in pairs by pairs of keys
by SMMLA (tvm_attention.lowering.dots).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from typing import Any

from tvm import te, tirx

from tvm_attention.compute.problem import float32

DIGITS = 3
RUN, LANES = 4, 4  # numbers that one lane of a product adds up, and lanes
DEPTH = 8  # numbers that one of two by two of a product adds up
_MOST, _BASE = 127.0, 254.0
_LEAST = 2.0**-100  # rows of smaller numbers are taken for zero
_INFINITE = 0x7F800000


def digit_scores(
    QS: te.Tensor, outer: tuple[Any, ...], key: Callable[..., Any]
) -> te.Tensor:
    """Stages QL, QM, QF, QI, QD, DOT and DF (..., row, lane): the lanes' sums of a product of ``QS`` (batch,
    kv_head, row, d) and a key, ``key(*index, d)`` as it is stored."""
    QD, QF = _digits(QS)
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
        small = (third * float32(1 / _BASE) + second) * float32(1 / _BASE)
        return (first + small) * QF[b, h, r]

    return te.compute((*outer, rows, LANES), lane, name="DF")


def pair_scores(
    QS: te.Tensor, outer: tuple[Any, ...], keys: int, key: Callable[..., Any]
) -> Callable[..., Any]:
    """Stages QL, QM, QF, QI, QD, QP (digits in pairs), QW, DOT and DF, the products of two digits and two keys
    with the digits' weights, of ``keys`` keys a vector. The result, at (*index of a key, row), is a score."""
    QD, QF = _digits(QS)
    *heads, rows, depth = QS.shape
    pairs = digit_pairs(rows)

    def digit_of(pair: Any, i: Any) -> tuple[Any, Any]:
        """Row and digit; one that there is no row for is computed and not used."""
        number = pair * 2 + i
        return tirx.min(tirx.truncdiv(number, DIGITS), rows - 1), tirx.truncmod(number, DIGITS)

    QP = te.compute(
        (*heads, pairs, depth // DEPTH, 2, DEPTH),
        lambda b, h, g, d, i, y: QD[(b, h, *digit_of(g, i), d * DEPTH + y)],
        name="QP",
    )

    def weight(b: Any, h: Any, g: Any, i: Any, j: Any) -> Any:
        row, n = digit_of(g, i)
        second = tirx.Select(n.equal(1), float32(1 / _BASE), float32(1 / _BASE**2))
        return QF[b, h, row] * tirx.Select(n.equal(0), float32(1.0), second)

    QW = te.compute((*heads, pairs, 2, 2), weight, name="QW")
    dd = te.reduce_axis((0, depth // DEPTH), "dd")
    y = te.reduce_axis((0, DEPTH), "y")

    def product(b: Any, h: Any, sp: Any, jo: Any, jp: Any, g: Any, i: Any, j: Any) -> Any:
        stored = tirx.Cast("int32", key(b, h, sp, jo, jp * 2 + j, dd * DEPTH + y))
        return te.sum(stored * tirx.Cast("int32", QP[b, h, g, dd, i, y]), axis=[dd, y])

    shape = (*outer, keys // 2, pairs, 2, 2)
    DOT = te.compute(shape, product, name="DOT")
    DF = te.compute(
        shape,
        lambda b, h, *i: tirx.Cast("float32", DOT[(b, h, *i)]) * QW[(b, h, *i[-3:])],
        name="DF",
    )

    def score(b: Any, h: Any, sp: Any, jo: Any, ji: Any, r: Any) -> Any:
        first, second, third = (
            DF[b, h, sp, jo, tirx.truncdiv(ji, 2), tirx.truncdiv(g, 2), tirx.truncmod(g, 2),
               tirx.truncmod(ji, 2)]
            for g in (r * DIGITS + n for n in range(DIGITS))
        )  # fmt: skip
        return first + (second + third)

    return score


def digit_pairs(rows: int) -> int:
    """Pairs that the digits of so many rows make."""
    return -(-DIGITS * rows // 2)


def _digits(QS: te.Tensor) -> tuple[te.Tensor, te.Tensor]:
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
        rest = (rest - digits[-1]) * float32(_BASE)
    chosen = digits[-1]
    for number in reversed(range(DIGITS - 1)):
        chosen = tirx.Select(n.equal(number), digits[number], chosen)
    return tirx.Cast("int8", tirx.Cast("int32", chosen))


def _magnitude(x: Any) -> Any:
    """The bits of a number but its sign: their order is that of numbers, NaN last."""
    return tirx.reinterpret("int32", x) & tirx.const(0x7FFFFFFF, "int32")
