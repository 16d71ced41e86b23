"""Queries as sums of integer digits, whose products with int8 keys are exact integers.

Of bytes, a row q is s (d1 + d2 / 254 + d3 / 254^2), s being a 127th of its largest number: three digits hold
24 bits of that, so that scores are as near as those of float32. Of words, two digits hold 31. They are
multiplied by the instructions of tvm_attention.lowering.dots, bytes in pairs, too
(tvm_attention.compute.digit_pairs).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import reduce
from typing import Any

from tvm import te, tirx

from tvm_attention.compute.problem import float32


@dataclass(frozen=True)
class Digits:
    """count: digits of a number; bits: of each; run: products that one lane of a sum adds up."""

    count: int
    bits: int
    run: int

    @property
    def most(self) -> float:
        return float(2 ** (self.bits - 1) - 1)

    @property
    def base(self) -> float:
        return 2 * self.most


BYTES, WORDS = Digits(3, 8, 4), Digits(2, 16, 2)
_LANES = 4  # over which a row's largest number is looked for
_LEAST = 2.0**-100  # rows of smaller numbers are taken for zero
_INFINITE = 0x7F800000


def digit_scores(
    QS: te.Tensor, outer: tuple[Any, ...], key: Callable[..., Any], digits: Digits, lanes: int
) -> te.Tensor:
    """Stages QL, QM, QF, QI, QD, DOT and DF (..., row, lane): the lanes' sums of a product of ``QS`` (batch,
    kv_head, row, d) and a key, ``key(*index, d)`` as it is stored."""
    QD, QF = digits_of(QS, digits)
    rows, depth = QS.shape[-2:]
    dd = te.reduce_axis((0, depth // (lanes * digits.run)), "dd")
    y = te.reduce_axis((0, digits.run), "y")

    def product(b: Any, h: Any, sp: Any, jo: Any, ji: Any, r: Any, n: Any, x: Any) -> Any:
        place = (dd * lanes + x) * digits.run + y
        stored = tirx.Cast("int32", key(b, h, sp, jo, ji, place))
        return te.sum(stored * tirx.Cast("int32", QD[b, h, r, n, place]), axis=[dd, y])

    DOT = te.compute((*outer, rows, digits.count, lanes), product, name="DOT")

    def lane(b: Any, h: Any, sp: Any, jo: Any, ji: Any, r: Any, x: Any) -> Any:
        first, *smaller = (
            tirx.Cast("float32", DOT[b, h, sp, jo, ji, r, n, x]) for n in range(digits.count)
        )
        small = smaller.pop() * float32(1 / digits.base)
        while smaller:
            small = (small + smaller.pop()) * float32(1 / digits.base)
        return (first + small) * QF[b, h, r]

    return te.compute((*outer, rows, lanes), lane, name="DF")


def digits_of(QS: te.Tensor, digits: Digits = BYTES) -> tuple[te.Tensor, te.Tensor]:
    """Stages QL, QM, QF, QI and QD: the digits of rows, and the factors of the first."""
    *heads, rows, depth = QS.shape
    d = te.reduce_axis((0, depth // _LANES), "dq")
    QL = te.compute(
        (*heads, rows, _LANES),
        lambda b, h, r, x: te.max(_magnitude(QS[b, h, r, d * _LANES + x]), axis=d),
        name="QL",
    )
    QM = te.compute(
        (*heads, rows), lambda *i: reduce(tirx.max, (QL(*i, x) for x in range(_LANES))), name="QM"
    )
    QF = te.compute(
        (*heads, rows),
        lambda *i: tirx.reinterpret("float32", QM[i]) * float32(1.0 / digits.most),
        name="QF",
    )
    QI = te.compute((*heads, rows), lambda *i: _digits_of_one(QM[i], digits), name="QI")
    QD = te.compute(
        (*heads, rows, digits.count, depth), lambda *i: _digit(QS, QI, digits, *i), name="QD"
    )
    return QD, QF


def _digits_of_one(largest: Any, digits: Digits) -> Any:
    """What a row's numbers are multiplied by; zero for rows that are not finite, whose factor QF makes the
    scores NaN."""
    top = tirx.reinterpret("float32", largest)
    usable = tirx.all(top > float32(_LEAST), largest < tirx.const(_INFINITE, "int32"))
    return tirx.Select(usable, float32(digits.most) / top, float32(0.0))


def _digit(
    QS: te.Tensor, QI: te.Tensor, digits: Digits, b: Any, h: Any, r: Any, n: Any, d: Any
) -> Any:
    scale = QI[b, h, r]
    none = scale.equal(float32(0.0))
    rest = tirx.Select(none, float32(0.0), QS[b, h, r, d] * scale)
    numbers = []
    for _ in range(digits.count):
        numbers.append(tirx.floor(rest + float32(0.5)))
        rest = (rest - numbers[-1]) * float32(digits.base)
    chosen = numbers.pop()
    while numbers:
        chosen = tirx.Select(n.equal(len(numbers) - 1), numbers.pop(), chosen)
    return tirx.Cast(f"int{digits.bits}", tirx.Cast("int32", chosen))


def _magnitude(x: Any) -> Any:
    """The bits of a number but its sign: their order is that of numbers, NaN last."""
    return tirx.reinterpret("int32", x) & tirx.const(0x7FFFFFFF, "int32")
