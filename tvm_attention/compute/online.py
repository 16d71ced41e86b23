"""What running attention keeps of a row from one key block to the next, and how it ends.

Online softmax (Milakov and Gimelshein, arXiv:1805.02867): RM is the row maximum over the key blocks so
far, A = 2^(RM before - RM), and R the sums so far, multiplied by A before a block is added. R has one more
tile of rows, the row sums L and, where the end of a row needs it, the maximum RM: they must leave the loop
over key blocks together. What RM was one key block earlier is written as :func:`before`; lowering makes it a
load (tvm_attention.lowering.carrying).
"""

from __future__ import annotations

from typing import Any

from tvm import te, tirx

from tvm_attention.compute.exp2 import power
from tvm_attention.compute.packing import finite_values
from tvm_attention.compute.problem import LOWEST_SCORE, Problem, ceil_div, float32
from tvm_attention.compute.rows import Rows
from tvm_attention.compute.scores import hidden

BEFORE, SCALED = "block_before", "scaled_sum"  # calls that lowering replaces


def before(first: float, current: Any = None) -> Any:
    """A stage's value one key block earlier (``current``: its element; None: the one being computed);
    ``first`` in the first block."""
    here = [] if current is None else [current]
    return tirx.call_extern("float32", BEFORE, float32(first), *here)


class Strips:
    """Index arithmetic of one expression: strips of query rows, blocks of keys."""

    def __init__(self, p: Problem, query_block: int, key_block: int, strips: int) -> None:
        self.block, self.strips, self.keys = query_block, strips, key_block
        rows = strips * self.block
        self.outer = (*p.outer, ceil_div(p["query_length"], rows), strips)
        self.count = ceil_div(p["key_length"], self.keys)

    def row(self, qb: Any, s: Any, i: Any) -> Any:
        return (qb * self.strips + s) * self.block + i

    def place(self, row: Any) -> tuple[Any, Any, Any]:
        """Query block, strip and row within it."""
        size = self.strips * self.block
        rest = tirx.floormod(row, size)
        return (
            tirx.floordiv(row, size),
            tirx.floordiv(rest, self.block),
            tirx.floormod(rest, self.block),
        )


def maxima(
    p: Problem, at: Strips, score_rows: int, SC: te.Tensor, scale: Any = None, at_once: int = 1
) -> tuple[te.Tensor, te.Tensor]:
    """Stages M, RM, D, A; returns RM and A. M runs over whole register tiles: past the last key they
    repeat it, or are minus infinity. ``scale`` (0 or more) is what scores are still multiplied by;
    ``at_once`` (a power of two) keys are compared before the maximum so far is: it waits less often."""
    shape = (*at.outer, at.count, at.block)
    kt = te.reduce_axis((0, at.keys // score_rows), "kt")
    kk = te.reduce_axis((0, score_rows // at_once), "kk")

    def largest(b: Any, h: Any, qb: Any, s: Any, kb: Any, i: Any) -> Any:
        keys = [SC[b, h, qb, s, kb, kt, kk * at_once + n, i] for n in range(at_once)]
        while len(keys) > 1:
            keys = [tirx.max(*both) for both in zip(keys[::2], keys[1::2], strict=True)]
        return te.max(keys[0], axis=[kt, kk])

    M = te.compute(shape, largest, name="M")

    def top(*i: Any) -> Any:
        return tirx.max(M[i] if scale is None else M[i] * scale, before(LOWEST_SCORE))

    RM = te.compute(shape, top, name="RM")
    D = te.compute(shape, lambda *i: before(LOWEST_SCORE, RM[i]) - RM[i], name="D")
    return RM, te.compute(shape, lambda *i: power(p, D[i]), name="A")


def accumulated(
    p: Problem, at: Strips, columns: int, width: int, OT: te.Tensor, L: te.Tensor,
    maximum: tuple[te.Tensor, te.Tensor], holds_all: bool,
) -> te.Tensor:  # fmt: skip
    """Stages R, N, (LSE, VL, VB, EX, RX,) O: the result from a block's products OT (``columns``, and
    ``width`` more that stand for L and the maximum) and the stages RM and A. Where the packed values do not
    hold all, NaN and Inf are added at the end."""
    k = te.reduce_axis((0, at.count), "k")
    (RM, A), last = maximum, columns + width - 1

    def addend(b: Any, h: Any, qb: Any, s: Any, c: Any, i: Any) -> Any:
        block = b, h, qb, s, k, i
        term, factor = L[block], A[block]
        if p.workload.keeps_maximum:
            term = tirx.Select(c < last, RM[block], term)
            factor = tirx.Select(tirx.all(c >= columns, c < last), float32(0.0), factor)
        term = tirx.Select(c < columns, OT[b, h, qb, s, k, c, i], term)
        return tirx.call_extern("float32", SCALED, term, factor)

    R = te.compute(
        (*at.outer, columns + width, at.block),
        lambda b, h, qb, s, c, i: te.sum(addend(b, h, qb, s, c, i), axis=k),
        name="R",
    )

    def total(*i: Any) -> Any:
        return R(*i[:-1], last, i[-1])

    def top(*i: Any) -> Any:
        no_key = total(*i).equal(float32(0.0))  # R started at zero
        return tirx.Select(no_key, float32(LOWEST_SCORE), R(*i[:-1], columns, i[-1]))

    rows = Rows(p, (*at.outer, at.block), top, total, lambda b, h, qb, s, i: h)
    values = R if holds_all else _with_non_finite(p, at, R)

    def result(b: Any, h: Any, i: Any, c: Any) -> Any:
        qb, s, ii = at.place(i)
        return rows.finish(p, values[b, h, qb, s, c, ii], b, h, qb, s, ii)

    return te.compute(p.out_shape, result, name="O")


def _with_non_finite(p: Problem, at: Strips, R: te.Tensor) -> te.Tensor:
    """R, to which NaN and Inf of the values that a row does see are added: packing left them out, since
    in the register tile they would reach rows that do not see them. Stages VB, EX, RX."""
    bad, left_out = finite_values(p, at.keys)
    kx, jx = te.reduce_axis((0, at.count), "kx"), te.reduce_axis((0, at.keys), "jx")
    zero = float32(0.0)

    def seen(b: Any, h: Any, qb: Any, s: Any, c: Any, i: Any) -> Any:
        kv_head, key = tirx.truncdiv(h, p["group"]), kx * at.keys + jx
        unseen = hidden(p, b, h, at.row(qb, s, i), key)
        term = tirx.Select(unseen, zero, left_out(b, kv_head, key, c))
        return te.sum(tirx.if_then_else(bad[b, kv_head, kx] > zero, term, zero), axis=[kx, jx])

    shape = (*at.outer, p.value_dim, at.block)
    EX = te.compute(shape, seen, name="EX")
    return te.compute(shape, lambda *i: R[i] + EX[i], name="RX")
