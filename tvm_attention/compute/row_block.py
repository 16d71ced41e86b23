"""Row-block attention: all scores of a block of query rows are kept in cache.

No key is padded: maximum, sum and P V run over exactly the valid keys, only the register tile of the
scores rounds up. Best while a block's scores fit into L2 (about a thousand keys).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tvm import te, tirx

from tvm_attention.compute.exp2 import exp2
from tvm_attention.compute.problem import MASKED, Problem, ceil_div, float32


@dataclass(frozen=True)
class RowBlockTiles:
    """Sizes that shape the expression.

    query_block: query rows of a task; score_rows: keys of a score register tile; value_rows: rows of the
    output register tile (queries, or value columns when ``queries_along_lanes``).
    """

    query_block: int
    score_rows: int
    value_rows: int
    queries_along_lanes: bool


def row_block(problem: Problem, tiles: RowBlockTiles) -> tirx.PrimFunc:
    """The expression. Stages: QT, ST (scores), M (row maximum), P (weights), L (row sum), OT, O."""
    p, block, rows = problem, tiles.query_block, tiles.score_rows
    outer = (p.batch, p.query_heads, ceil_div(p.query_length, block))
    last_query, last_key = p.query_length - 1, p.key_length - 1

    QT = te.compute(
        (*outer, p.head_dim, block),
        lambda b, h, qb, d, i: (
            p.query[b, h, tirx.min(qb * block + i, last_query), d] * p.scale_log2
        ),
        name="QT",
    )
    d = te.reduce_axis((0, p.head_dim), "d")
    ST = te.compute(
        (*outer, ceil_div(p.key_length, rows), rows, block),
        lambda b, h, qb, kt, kk, i: te.sum(
            p.key[b, tirx.truncdiv(h, p.group), tirx.min(kt * rows + kk, last_key), d]
            * QT[b, h, qb, d, i],
            axis=d,
        ),
        name="ST",
    )

    def score(b: Any, h: Any, qb: Any, j: Any, i: Any) -> Any:
        s = ST[b, h, qb, tirx.floordiv(j, rows), tirx.floormod(j, rows), i]
        if not p.causal:
            return s
        return tirx.Select(p.visible(qb * block + i, j), s, float32(MASKED))

    def weight(b: Any, h: Any, qb: Any, j: Any, i: Any) -> Any:
        w = exp2(score(b, h, qb, j, i) - M[b, h, qb, i])
        if not p.causal:
            return w
        return tirx.Select(p.visible(qb * block + i, j), w, float32(0.0))

    j1, j2, j3 = (te.reduce_axis((0, p.key_length), f"j{n}") for n in (1, 2, 3))
    M = te.compute(
        (*outer, block),
        lambda b, h, qb, i: te.max(score(b, h, qb, j1, i), axis=j1),
        name="M",
    )
    P = te.compute((*outer, p.key_length, block), weight, name="P")
    L = te.compute(
        (*outer, block), lambda b, h, qb, i: te.sum(P[b, h, qb, j2, i], axis=j2), name="L"
    )
    if tiles.queries_along_lanes:
        # Columns round up to the register tile by repeating the last one: a clamped broadcast is free.
        columns = -(-p.value_dim // tiles.value_rows) * tiles.value_rows
        OT = te.compute(
            (*outer, columns, block),
            lambda b, h, qb, c, i: te.sum(
                p.value[b, tirx.truncdiv(h, p.group), j3, tirx.min(c, p.value_dim - 1)]
                * P[b, h, qb, j3, i],
                axis=j3,
            ),
            name="OT",
        )
    else:
        OT = te.compute(
            (*outer, block, p.value_dim),
            lambda b, h, qb, i, c: te.sum(
                p.value[b, tirx.truncdiv(h, p.group), j3, c] * P[b, h, qb, j3, i], axis=j3
            ),
            name="OT",
        )

    def result(b: Any, h: Any, i: Any, c: Any) -> Any:
        qb, ii = tirx.floordiv(i, block), tirx.floormod(i, block)
        o = OT[b, h, qb, c, ii] if tiles.queries_along_lanes else OT[b, h, qb, ii, c]
        return p.normalise(i, o, L[b, h, qb, ii])

    O = te.compute(  # noqa: E741
        (p.batch, p.query_heads, p.query_length, p.value_dim), result, name="O"
    )
    return p.function(O)
