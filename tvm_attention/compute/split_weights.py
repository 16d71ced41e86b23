"""The softmax of a split: its maxima, the weights of its keys and their sums."""

from __future__ import annotations

from typing import Any

from tvm import te, tirx

from tvm_attention.compute.problem import Problem, float32
from tvm_attention.compute.scores import weight
from tvm_attention.compute.splits import Places


def split_weights(
    p: Problem, places: Places, outer: Any, SM: te.Tensor, below: float = 0.0
) -> tuple[te.Tensor, te.Tensor, te.Tensor]:
    """Stages ML, M, P, LL and L: (M, P, L) of scores SM (..., row, vector, lane). Weights are relative to a
    number that is ``below`` the maximum by so much."""
    *_, rows, vectors, lanes = SM.shape
    jm, js = (te.reduce_axis((0, vectors), n) for n in ("jm", "js"))
    xm, xs = (te.reduce_axis((0, lanes), n) for n in ("xm", "xs"))
    ML = te.compute(
        (*outer, rows, lanes),
        lambda b, h, sp, r, x: te.max(SM[b, h, sp, r, jm, x], axis=jm),
        name="ML",
    )

    def top(b: Any, h: Any, sp: Any, r: Any) -> Any:
        highest = ML[b, h, sp, r, xm]
        return te.max(highest - float32(below) if below else highest, axis=xm)

    M = te.compute((*outer, rows), top, name="M")
    P = te.compute(
        (*outer, rows, vectors, lanes),
        lambda b, h, sp, r, jo, ji: tirx.Select(
            places.in_range(b, sp, jo, ji),
            weight(p, SM[b, h, sp, r, jo, ji], M[b, h, sp, r]),
            float32(0.0),
        ),
        name="P",
    )
    LL = te.compute(
        (*outer, rows, lanes),
        lambda b, h, sp, r, x: te.sum(P[b, h, sp, r, js, x], axis=js),
        name="LL",
    )
    L = te.compute(
        (*outer, rows), lambda b, h, sp, r: te.sum(LL[b, h, sp, r, xs], axis=xs), name="L"
    )
    return M, P, L
