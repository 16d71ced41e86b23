"""Queries' digits in pairs, two of which are multiplied by two int8 keys at once (SMMLA)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tvm import te, tirx

from tvm_attention.compute.digits import BYTES, digits_of
from tvm_attention.compute.problem import float32

_DIGITS, _BASE = BYTES.count, BYTES.base
DEPTH = 8  # numbers that one of two by two sums adds up


def pair_scores(
    QS: te.Tensor, outer: tuple[Any, ...], keys: int, key: Callable[..., Any]
) -> Callable[..., Any]:
    """Stages QL, QM, QF, QI, QD, QP, QW, DOT and DF, the products of two digits and two keys with the digits'
    weights, of ``keys`` keys a vector. The result, at (*index of a key, row), is a score."""
    QP, QW = _pairs(QS)
    _, _, pairs, steps, _, _ = QP.shape
    dd = te.reduce_axis((0, steps), "dd")
    y = te.reduce_axis((0, DEPTH), "y")

    def product(b: Any, h: Any, sp: Any, jo: Any, jp: Any, g: Any, i: Any, j: Any) -> Any:
        stored = tirx.Cast("int32", key(b, h, sp, jo, jp * 2 + j, dd * DEPTH + y))
        return te.sum(stored * tirx.Cast("int32", QP[b, h, g, dd, i, y]), axis=[dd, y])

    shape = (*outer, keys // 2, pairs, 2, 2)
    DOT = te.compute(shape, product, name="DOT")
    DF = te.compute(
        shape, lambda b, h, *i: tirx.Cast("float32", DOT(b, h, *i)) * QW(b, h, *i[-3:]), name="DF"
    )

    def digit(index: list[Any], ji: Any, number: Any) -> Any:
        pair, which = tirx.truncdiv(number, 2), tirx.truncmod(number, 2)
        return DF(*index, tirx.truncdiv(ji, 2), pair, which, tirx.truncmod(ji, 2))

    def score(*index: Any) -> Any:
        *place, ji, row = index
        first, second, third = (digit(place, ji, row * _DIGITS + n) for n in range(_DIGITS))
        return first + (second + third)

    return score


def _pairs(QS: te.Tensor) -> tuple[te.Tensor, te.Tensor]:
    """Stages QP, the digits in pairs, and QW, the weight of each, once for every key of a pair."""
    QD, QF = digits_of(QS)
    *heads, rows, depth = QS.shape
    pairs = -(-_DIGITS * int(rows) // 2)

    def place(pair: Any, i: Any) -> tuple[Any, Any]:
        """Row and digit; one that there is no row for is computed and not used."""
        number = pair * 2 + i
        return tirx.min(tirx.truncdiv(number, _DIGITS), rows - 1), tirx.truncmod(number, _DIGITS)

    QP = te.compute(
        (*heads, pairs, depth // DEPTH, 2, DEPTH),
        lambda b, h, g, d, i, y: QD(b, h, *place(g, i), d * DEPTH + y),
        name="QP",
    )

    def weight(b: Any, h: Any, g: Any, i: Any, j: Any) -> Any:
        row, n = place(g, i)
        later = tirx.Select(n.equal(1), float32(1 / _BASE), float32(1 / _BASE**2))
        return QF[b, h, row] * tirx.Select(n.equal(0), float32(1.0), later)

    return QP, te.compute((*heads, pairs, 2, 2), weight, name="QW")
