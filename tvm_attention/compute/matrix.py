"""Running attention whose two matrix products are those of a matrix unit, of 16 x 16 tiles.

Operands are sums of bfloat16 pieces (tvm_attention.compute.pieces); sums are float32. Queries lie along the
columns: scores = keys x queries and values^T x weights, so that keys are taken as they lie, values transposed
once a block, and softmax runs along columns as in the other variants. The operand on the right of a product
holds pairs of rows, as matrix units take them.

Packed values hold zero for NaN and Inf, which are added where they are seen: zero weights of padding would
turn them into NaN.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tvm import te, tirx

from tvm_attention.compute.matrix_operands import Operands
from tvm_attention.compute.online import Strips, accumulated, maxima
from tvm_attention.compute.pieces import (
    WEIGHT_PIECES,
    of_pair,
    pair,
    piece,
    rounded,
)
from tvm_attention.compute.problem import Problem, float32
from tvm_attention.compute.scores import modified, transposed_mask, weight

SCORE_ROWS = 32  # keys of a tile of scores
# The least that scores are scaled by: with zero, those of padding, minus infinity, would become NaN.
_LEAST = 2.0**-100


@dataclass(frozen=True)
class MatrixTiles:
    """query_block: query rows of a strip; strips: of a task; key_block: keys of a block, a multiple of
    SCORE_ROWS; value_rows: value columns of a tile of results."""

    query_block: int
    strips: int
    key_block: int
    value_rows: int


def mask_alone(p: Problem) -> bool:
    """Whether products are scores but for a dense mask: those of a tile that it does not change stay."""
    w = p.workload
    modified = w.softcap or w.alibi or w.causal or w.window or w.ragged
    return w.mask_dense and w.dtype == "float32" and not modified


class _Matrix:
    """The stages of one expression."""

    def __init__(self, p: Problem, tiles: MatrixTiles) -> None:
        self.p, self.width = p, tiles.value_rows
        self.at = Strips(p, tiles.query_block, tiles.key_block, tiles.strips)
        self.operands = Operands(p, self.at, self.width)
        dtype = p.workload.dtype
        self.count, self.weight_count = self.operands.count, WEIGHT_PIECES[dtype]
        self.exact = dtype == "float32"
        w = p.workload
        self.plain = not (w.masks or w.softcap or w.alibi)  # scores enter the softmax as they are
        # float32 queries are scaled. Others would need more pieces then: only their sign is changed, and
        # scores are scaled by what is left, on the way into the softmax.
        self.scale = None if self.exact else tirx.max(tirx.abs(p["scale_log2"]), float32(_LEAST))

    def scores(self) -> te.Tensor:
        """Stages ST and, where the products are not yet what enters the softmax, (MT,) SC."""
        at, operands = self.at, self.operands
        QB, KP = operands.queries(), operands.keys()
        m, n = (te.reduce_axis((0, self.count), x) for x in ("m", "n"))
        d, zero = te.reduce_axis((0, operands.depth), "d"), float32(0.0)
        # Scores may be large: those of 16-bit numbers are exact up to the rounding of sums.
        limit = self.count if self.exact else 2 * self.count - 1

        def product(b: Any, h: Any, qb: Any, s: Any, kb: Any, kt: Any, kk: Any, i: Any) -> Any:
            kv_head, key = tirx.truncdiv(h, self.p["group"]), kt * SCORE_ROWS + kk
            half = of_pair(QB[b, h, qb, s, tirx.floordiv(d, 2), n, i], tirx.floormod(d, 2))
            term = operands.key(KP, (b, kv_head, kb), key, m, d) * half
            return te.sum(tirx.Select(m + n < limit, term, zero), axis=[m, n, d])

        shape = (*at.outer, at.count, at.keys // SCORE_ROWS, SCORE_ROWS, at.block)
        ST = te.compute(shape, product, name="ST")
        return self._modified(ST)

    def _modified(self, ST: te.Tensor) -> te.Tensor:
        p, at = self.p, self.at
        if self.plain:
            return ST  # minus infinity beyond the last key: lowering sees to it

        def place(
            b: Any, h: Any, qb: Any, s: Any, kb: Any, kt: Any, kk: Any, i: Any
        ) -> tuple[Any, ...]:
            return b, h, at.row(qb, s, i), kb * at.keys + kt * SCORE_ROWS + kk

        MT = transposed_mask(p, tuple(ST.shape), place)

        def score(*index: Any) -> Any:
            b, h, row, key = place(*index)
            number = ST[index] if self.scale is None else ST[index] * self.scale
            number = modified(p, b, h, row, key, number, None if MT is None else MT[index])
            if MT is not None:  # which masks what lies beyond the last key
                return number
            return tirx.Select(key < p.bounds.keys(b), number, float32(float("-inf")))

        return te.compute(ST.shape, score, name="SC")

    def maxima(self, SC: te.Tensor) -> tuple[te.Tensor, te.Tensor]:
        """Stages M, RM, D, A; returns RM and A."""
        return maxima(
            self.p, self.at, SCORE_ROWS, SC, self.scale if self.plain else None, at_once=4
        )

    def weights(self, SC: te.Tensor, RM: te.Tensor) -> tuple[te.Tensor, te.Tensor]:
        """Stages P, PB (..., pair of keys, piece, row) and L."""
        p, at, count = self.p, self.at, self.weight_count
        scale = self.scale if self.plain else None
        # Of a log-sum-exp the sum of the weights is a result.
        exact = p.workload.output == "attention_and_lse"
        precision = "float32" if exact else p.workload.dtype

        def one(b: Any, h: Any, qb: Any, s: Any, kb: Any, j: Any, i: Any) -> Any:
            tile, row = tirx.floordiv(j, SCORE_ROWS), tirx.floormod(j, SCORE_ROWS)
            score = SC[b, h, qb, s, kb, tile, row, i]
            score = score if scale is None else score * scale
            return weight(p, score, RM[b, h, qb, s, kb, i], precision)

        P = te.compute((*at.outer, at.count, at.keys, at.block), one, name="P")

        def pieces(b: Any, h: Any, qb: Any, s: Any, kb: Any, j2: Any, n: Any, i: Any) -> Any:
            both = [P[b, h, qb, s, kb, 2 * j2 + t, i] for t in (0, 1)]
            first, second = (rounded(x) if count == 1 else piece(x, n, count) for x in both)
            return pair(first, second, merged=p.exponent == "instructions")

        PB = te.compute((*at.outer, at.count, at.keys // 2, count, at.block), pieces, name="PB")

        def both(b: Any, h: Any, qb: Any, s: Any, kb: Any, i: Any) -> Any:
            first, second = (P[b, h, qb, s, kb, 2 * j2 + t, i] for t in (0, 1))
            return te.sum(first + second, axis=j2)

        j2 = te.reduce_axis((0, at.keys // 2), "j2")
        L = te.compute((*at.outer, at.count, at.block), both, name="L")
        return PB, L

    def weighted(self, PB: te.Tensor) -> te.Tensor:
        """Stage OT; its last tile of rows stands for L and is lowered to nothing."""
        at, operands = self.at, self.operands
        VP = operands.values()
        m = te.reduce_axis((0, self.count), "m")
        n = te.reduce_axis((0, self.weight_count), "n")
        j, zero = te.reduce_axis((0, at.keys), "j"), float32(0.0)
        limit, last = max(self.count, self.weight_count), self.operands.columns - 1

        def product(b: Any, h: Any, qb: Any, s: Any, kb: Any, c: Any, i: Any) -> Any:
            kv_head = tirx.truncdiv(h, self.p["group"])
            half = of_pair(PB[b, h, qb, s, kb, tirx.floordiv(j, 2), n, i], tirx.floormod(j, 2))
            term = operands.value(VP, (b, kv_head, kb), tirx.min(c, last), m, j) * half
            return te.sum(tirx.Select(m + n < limit, term, zero), axis=[m, n, j])

        return te.compute(
            (*at.outer, at.count, self.operands.columns + self.width, at.block), product, name="OT"
        )


def matrix(p: Problem, tiles: MatrixTiles) -> tirx.PrimFunc:
    """Stages (QT,) QB, KP, ST, (MT, SC,) M, RM, D, A, P, PB, L, (VT,) VP, OT, R, N, (LSE,) VL, VB, EX, RX,
    O."""
    stages = _Matrix(p, tiles)
    SC = stages.scores()
    RM, A = stages.maxima(SC)
    PB, L = stages.weights(SC, RM)
    OT = stages.weighted(PB)
    columns, width = stages.operands.columns, stages.width
    return p.function(accumulated(p, stages.at, columns, width, OT, L, (RM, A), holds_all=False))
