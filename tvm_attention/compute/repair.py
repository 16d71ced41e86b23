"""Keeping what is masked out of the weighted sum, NaN and Inf included.

A masked key has weight zero, but zero times NaN or Inf is NaN, and the rows of a tile share their
values. Selecting in the inner loop would double its cost, so the sum is looked at afterwards, and only if
it holds a NaN is it computed again, without the terms of weight zero.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tvm import te, tirx

from tvm_attention.compute.operand import is_number
from tvm_attention.compute.problem import Problem, float32

Element = Callable[..., Any]


def repaired(
    p: Problem,
    total: te.Tensor,
    lanes: int,
    term: Callable[..., tuple[Any, Any]],
    axes: Sequence[Any],
) -> Element:
    """An element of ``total`` (..., row, column), free of what masked keys hold.

    ``term(*index)`` is (weight, value) of the sum over ``axes``. Stages FL, FV and FLAG, NaN where total
    holds a NaN, and OX, the sum again. Without masks there is nothing to keep out.
    """
    if not p.workload.masks:
        return lambda *index: total[index]
    *lead, rows, columns = total.shape
    r = te.reduce_axis((0, rows), "fr")
    v = te.reduce_axis((0, tirx.floordiv(columns, lanes)), "fv")
    x = te.reduce_axis((0, lanes), "fx")
    zero = float32(0.0)

    def unless_number(x: Any) -> Any:
        # Not x times zero, which TVM simplifies to zero.
        return tirx.Select(is_number(x), zero, x)

    FL = te.compute(
        (*lead, columns),
        lambda *i: te.sum(unless_number(total(*i[:-1], r, i[-1])), axis=r),
        name="FL",
    )
    FV = te.compute(
        (*lead, lanes), lambda *i: te.sum(FL(*i[:-1], v * lanes + i[-1]), axis=v), name="FV"
    )
    FLAG = te.compute(tuple(lead), lambda *i: te.sum(FV(*i, x), axis=x), name="FLAG")

    def visible_sum(*index: Any) -> Any:
        weight, value = term(*index)
        product = tirx.Select(weight > zero, weight * value, zero)
        flag = FLAG[index[:-2]]
        return te.sum(tirx.if_then_else(is_number(flag), zero, product), axis=axes)

    OX = te.compute(total.shape, visible_sum, name="OX")
    return lambda *index: tirx.Select(is_number(total[index]), total[index], OX[index])
