"""Running attention: one accumulator of weighted values per query block, rescaled as the maximum grows.

Online softmax (Milakov and Gimelshein, arXiv:1805.02867): RM is the row maximum over the key blocks so
far, A = 2^(RM before - RM), and R the sums so far, multiplied by A before a block is added. R's update is
the end of the P V register tile: a tile's result never goes through memory. R has one more tile of rows,
the row sums L: they must leave the loop over key blocks together. What RM was one key block earlier is
written as :func:`before`; lowering makes it a load (tvm_attention.lowering.carrying).

A task holds several strips of queries, which meet a block's keys and values while those are in cache.
"""

from __future__ import annotations

from typing import Any

from tvm import te, tirx

from tvm_attention.compute.exp2 import exp2
from tvm_attention.compute.key_blocks import KeyBlockTiles
from tvm_attention.compute.packing import finite_values, key_rows, scale_row, value_columns
from tvm_attention.compute.problem import LOWEST_SCORE, Problem, ceil_div, float32
from tvm_attention.compute.rows import normaliser
from tvm_attention.compute.scores import modified, scored, weight

BEFORE, SCALED = "block_before", "scaled_sum"  # calls that lowering replaces


def before(first: float, current: Any = None) -> Any:
    """A stage's value one key block earlier (``current``: its element; None: the one being computed);
    ``first`` in the first block."""
    here = [] if current is None else [current]
    return tirx.call_extern("float32", BEFORE, float32(first), *here)


class _Rows:
    """Index arithmetic of one expression: strips of query rows, blocks of keys."""

    def __init__(self, p: Problem, tiles: KeyBlockTiles, strips: int) -> None:
        self.block, self.strips, self.keys = tiles.query_block, strips, tiles.key_block
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


def running(p: Problem, tiles: KeyBlockTiles, strips: int) -> tirx.PrimFunc:
    """Stages QT, (KP,) ST, SC, M, RM, D, A, P, L, (VP,) OT, R, N, (VB, EX, FX,) O."""
    at = _Rows(p, tiles, strips)
    outer, count, width = at.outer, at.count, tiles.value_rows
    columns = -(-p.value_dim // width) * width
    SC = _scores(p, tiles, at)
    P, L, A = _weights(p, tiles, at, SC)
    value = value_columns(p, tiles.pack_value, width, only_finite=p.workload.masks)
    j3 = te.reduce_axis((0, at.keys), "j3")
    OT = te.compute(  # the last tile of rows stands for L; its loop over keys is lowered to no iteration
        (*outer, count, columns + width, at.block),
        lambda b, h, qb, s, kb, c, i: te.sum(
            value(b, tirx.truncdiv(h, p["group"]), kb * at.keys + j3, tirx.min(c, columns - 1))
            * P[b, h, qb, s, kb, j3, i],
            axis=j3,
        ),
        name="OT",
    )
    k = te.reduce_axis((0, count), "k")

    def addend(b: Any, h: Any, qb: Any, s: Any, c: Any, i: Any) -> Any:
        t = tirx.Select(c < columns, OT[b, h, qb, s, k, c, i], L[b, h, qb, s, k, i])
        return tirx.call_extern("float32", SCALED, t, A[b, h, qb, s, k, i])

    R = te.compute(
        (*outer, columns + width, at.block),
        lambda b, h, qb, s, c, i: te.sum(addend(b, h, qb, s, c, i), axis=k),
        name="R",
    )

    N = te.compute(
        (*outer, at.block),
        lambda *i: normaliser(p, R(*i[:-1], columns + width - 1, i[-1]), float32(1.0)),
        name="N",
    )
    values = _with_non_finite(p, at, R)

    def result(b: Any, h: Any, i: Any, c: Any) -> Any:
        qb, s, ii = at.place(i)
        return p.result(values[b, h, qb, s, c, ii] * N[b, h, qb, s, ii])

    return p.function(te.compute(p.out_shape, result, name="O"))


def _scores(p: Problem, tiles: KeyBlockTiles, at: _Rows) -> te.Tensor:
    rows = tiles.score_rows
    scale = scale_row(p)
    QT = te.compute(
        (*at.outer, p.head_dim, at.block),
        lambda b, h, qb, s, d, i: p.query(b, h, at.row(qb, s, i), d) * scale(d),
        name="QT",
    )
    key = key_rows(p, tiles.pack_key)
    d = te.reduce_axis((0, p.head_dim), "d")
    shape = (*at.outer, at.count, at.keys // rows, rows, at.block)
    ST = te.compute(
        shape,
        lambda b, h, qb, s, kb, kt, kk, i: te.sum(
            key(b, tirx.truncdiv(h, p["group"]), kb * at.keys + kt * rows + kk, d)
            * QT[b, h, qb, s, d, i],
            axis=d,
        ),
        name="ST",
    )

    def place(
        b: Any, h: Any, qb: Any, s: Any, kb: Any, kt: Any, kk: Any, i: Any
    ) -> tuple[Any, ...]:
        return b, h, at.row(qb, s, i), kb * at.keys + kt * rows + kk

    return scored(p, ST, place)


def _weights(
    p: Problem, tiles: KeyBlockTiles, at: _Rows, SC: te.Tensor
) -> tuple[te.Tensor, te.Tensor, te.Tensor]:
    """Stages M, RM, D, A, P, L. M runs over whole register tiles: past the last key they repeat it, and
    a maximum of something else than the keys seen does no harm."""
    rows = tiles.score_rows
    shape = (*at.outer, at.count, at.block)
    kt, kk = te.reduce_axis((0, at.keys // rows), "kt"), te.reduce_axis((0, rows), "kk")
    M = te.compute(
        shape,
        lambda b, h, qb, s, kb, i: te.max(SC[b, h, qb, s, kb, kt, kk, i], axis=[kt, kk]),
        name="M",
    )
    RM = te.compute(shape, lambda *i: tirx.max(M[i], before(LOWEST_SCORE)), name="RM")
    D = te.compute(shape, lambda *i: before(LOWEST_SCORE, RM[i]) - RM[i], name="D")
    A = te.compute(shape, lambda *i: exp2(D[i]), name="A")
    P = te.compute(
        (*at.outer, at.count, at.keys, at.block),
        lambda b, h, qb, s, kb, j, i: weight(
            p,
            SC[b, h, qb, s, kb, tirx.floordiv(j, rows), tirx.floormod(j, rows), i],
            RM[b, h, qb, s, kb, i],
        ),
        name="P",
    )
    j2 = te.reduce_axis((0, at.keys), "j2")
    L = te.compute(
        shape, lambda b, h, qb, s, kb, i: te.sum(P[b, h, qb, s, kb, j2, i], axis=j2), name="L"
    )
    return P, L, A


def _with_non_finite(p: Problem, at: _Rows, R: te.Tensor) -> te.Tensor:
    """R, to which NaN and Inf of the values that a row does see are added: packing left them out, since
    in the register tile they would reach rows that do not see them. Stages VB, EX, FX."""
    if not p.workload.masks:
        return R
    bad, left_out = finite_values(p, at.keys)
    kx, jx = te.reduce_axis((0, at.count), "kx"), te.reduce_axis((0, at.keys), "jx")
    zero = float32(0.0)

    def seen(b: Any, h: Any, qb: Any, s: Any, c: Any, i: Any) -> Any:
        kv_head, key = tirx.truncdiv(h, p["group"]), kx * at.keys + jx
        score = modified(p, b, h, at.row(qb, s, i), key, zero)
        term = tirx.Select(score < float32(LOWEST_SCORE), zero, left_out(b, kv_head, key, c))
        return te.sum(tirx.if_then_else(bad[b, kv_head, kx] > zero, term, zero), axis=[kx, jx])

    shape = (*at.outer, p.value_dim, at.block)
    EX = te.compute(shape, seen, name="EX")
    return te.compute(shape, lambda *i: R[i] + EX[i], name="FX")
