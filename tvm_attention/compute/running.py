"""Running attention: one accumulator of weighted values per query block, rescaled as the maximum grows.

Online softmax (tvm_attention.compute.online). R's update is the end of the P V register tile: a tile's
result never goes through memory. A task holds several strips of queries, which meet a block's keys and
values while those are in cache.
"""

from __future__ import annotations

from typing import Any

from tvm import te, tirx

from tvm_attention.compute.key_blocks import KeyBlockTiles
from tvm_attention.compute.online import Strips, accumulated, maxima
from tvm_attention.compute.packing import key_rows, scale_row, value_columns
from tvm_attention.compute.problem import Problem
from tvm_attention.compute.scores import scored, weight


def running(p: Problem, tiles: KeyBlockTiles, strips: int) -> tirx.PrimFunc:
    """Stages QT, (KP,) ST, SC, M, RM, D, A, P, L, (VP,) OT, R, N, (LSE, VB, EX, RX,) O."""
    at = Strips(p, tiles.query_block, tiles.key_block, strips)
    outer, count, width = at.outer, at.count, tiles.value_rows
    columns = -(-p.value_dim // width) * width
    SC = _scores(p, tiles, at)
    RM, A = maxima(p, at, tiles.score_rows, SC)
    P, L = _weights(p, tiles, at, SC, RM)
    value = value_columns(p, tiles.pack_value, width, only_finite=p.workload.masks)
    j3 = te.reduce_axis((0, at.keys), "j3")

    def column(c: Any) -> Any:
        """The last tile of rows stands for L, and its loop over keys is lowered to no iteration. Clamped as
        a tile: rows clamped one by one would each have an address of its own in the innermost loop."""
        tile = tirx.min(tirx.floordiv(c, width), columns // width - 1)
        return tile * width + tirx.floormod(c, width)

    OT = te.compute(
        (*outer, count, columns + width, at.block),
        lambda b, h, qb, s, kb, c, i: te.sum(
            value(b, tirx.truncdiv(h, p["group"]), kb * at.keys + j3, column(c))
            * P[b, h, qb, s, kb, j3, i],
            axis=j3,
        ),
        name="OT",
    )
    holds_all = not p.workload.masks
    return p.function(accumulated(p, at, columns, width, OT, L, (RM, A), holds_all))


def _scores(p: Problem, tiles: KeyBlockTiles, at: Strips) -> te.Tensor:
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
    p: Problem, tiles: KeyBlockTiles, at: Strips, SC: te.Tensor, RM: te.Tensor
) -> tuple[te.Tensor, te.Tensor]:
    """Stages P and L."""
    rows = tiles.score_rows
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
        (*at.outer, at.count, at.block),
        lambda b, h, qb, s, kb, i: te.sum(P[b, h, qb, s, kb, j2, i], axis=j2),
        name="L",
    )
    return P, L
