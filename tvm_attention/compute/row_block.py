"""Row-block attention: all scores of a block of query rows are kept in cache.

No key is padded: maximum, sum and P V run over exactly the valid keys, only the register tile of the
scores rounds up. Best while a block's scores fit into L2 (about a thousand keys).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tvm import te, tirx

from tvm_attention.compute.packing import key_rows, scale_row, value_columns
from tvm_attention.compute.problem import Problem, ceil_div
from tvm_attention.compute.repair import repaired
from tvm_attention.compute.rows import Rows
from tvm_attention.compute.scores import scored, weight


@dataclass(frozen=True)
class RowBlockTiles:
    """Sizes that shape the expression.

    query_block: query rows of a task; score_rows: keys of a score register tile; value_rows: rows of the
    output register tile (queries, or value columns when ``queries_along_lanes``); pack_key, pack_value:
    whether a float32 copy is made first; lanes: of a vector that divides the output tile's columns.
    """

    query_block: int
    score_rows: int
    value_rows: int
    queries_along_lanes: bool
    pack_key: bool
    pack_value: bool
    lanes: int


@dataclass(frozen=True)
class _Softmax:
    """Stages of the softmax of a task, all over (batch, head, query block)."""

    outer: tuple[Any, Any, Any]
    P: te.Tensor
    rows: Rows


def row_block(p: Problem, tiles: RowBlockTiles) -> tirx.PrimFunc:
    """Stages: QT, (KP,) ST, SC (scores), M (row maximum), P (weights), L (row sum), N, (VP,) OT, O."""
    softmax = _softmax(p, tiles)
    P, block, along = softmax.P, tiles.query_block, tiles.queries_along_lanes
    # Columns round up to the register tile by repeating the last one: a clamped broadcast is free.
    columns = -(-p.value_dim // tiles.value_rows) * tiles.value_rows if along else p.value_dim
    value = value_columns(p, tiles.pack_value, tiles.value_rows if along else p.value_dim)
    j3 = te.reduce_axis((0, p.some_keys), "j3")

    def term(b: Any, h: Any, qb: Any, row: Any, column: Any) -> tuple[Any, Any]:
        c, i = (row, column) if along else (column, row)
        return P[b, h, qb, j3, i], value(b, tirx.truncdiv(h, p["group"]), j3, c)

    def product(*index: Any) -> Any:
        w, v = term(*index)
        return te.sum(v * w, axis=j3)

    shape = (columns, block) if along else (block, columns)
    OT = te.compute((*softmax.outer, *shape), product, name="OT")
    j5 = te.reduce_axis((0, p.some_keys), "j5")

    def term_again(b: Any, h: Any, qb: Any, row: Any, column: Any) -> tuple[Any, Any]:
        c, i = (row, column) if along else (column, row)
        return P[b, h, qb, j5, i], value(b, tirx.truncdiv(h, p["group"]), j5, c)

    total = repaired(p, OT, tiles.lanes, term_again, [j5])
    # A stage of its own, so that the result is a plain product.
    FX = te.compute(OT.shape, lambda *i: total(*i), name="FX") if p.workload.masks else OT

    def result(b: Any, h: Any, i: Any, c: Any) -> Any:
        qb, ii = tirx.floordiv(i, block), tirx.floormod(i, block)
        o = FX[b, h, qb, c, ii] if along else FX[b, h, qb, ii, c]
        return softmax.rows.finish(p, o, b, h, qb, ii)

    return p.function(te.compute(p.out_shape, result, name="O"))


def weights(p: Problem, tiles: RowBlockTiles) -> tirx.PrimFunc:
    """The softmax rows themselves, (batch, query_heads, query_length, key_length)."""
    softmax = _softmax(p, tiles)
    block = tiles.query_block

    def result(b: Any, h: Any, i: Any, j: Any) -> Any:
        qb, ii = tirx.floordiv(i, block), tirx.floormod(i, block)
        return p.result(softmax.P[b, h, qb, j, ii] * softmax.rows.normaliser[b, h, qb, ii])

    shape = (*p.outer, p["query_length"], p["key_length"])
    return p.function(te.compute(shape, result, name="O"))


def _softmax(p: Problem, tiles: RowBlockTiles) -> _Softmax:
    block, tile = tiles.query_block, tiles.score_rows
    outer = (*p.outer, ceil_div(p["query_length"], block))
    scale = scale_row(p)
    QT = te.compute(
        (*outer, p.head_dim, block),
        lambda b, h, qb, d, i: p.query(b, h, qb * block + i, d) * scale(d),
        name="QT",
    )
    key = key_rows(p, tiles.pack_key)
    d = te.reduce_axis((0, p.head_dim), "d")
    shape = (*outer, ceil_div(p.some_keys, tile), tile, block)
    ST = te.compute(
        shape,
        lambda b, h, qb, kt, kk, i: te.sum(
            key(b, tirx.truncdiv(h, p["group"]), kt * tile + kk, d) * QT[b, h, qb, d, i], axis=d
        ),
        name="ST",
    )
    SC = scored(p, ST, lambda b, h, qb, kt, kk, i: (b, h, qb * block + i, kt * tile + kk))

    def score(b: Any, h: Any, qb: Any, j: Any, i: Any) -> Any:
        return SC[b, h, qb, tirx.floordiv(j, tile), tirx.floormod(j, tile), i]

    j1, j2 = (te.reduce_axis((0, p.some_keys), f"j{n}") for n in (1, 2))
    M = te.compute(
        (*outer, block),
        lambda b, h, qb, i: te.max(score(b, h, qb, j1, i), axis=j1),
        name="M",
    )
    P = te.compute(
        (*outer, p.some_keys, block),
        lambda b, h, qb, j, i: weight(p, score(b, h, qb, j, i), M[b, h, qb, i]),
        name="P",
    )
    L = te.compute(
        (*outer, block), lambda b, h, qb, i: te.sum(P[b, h, qb, j2, i], axis=j2), name="L"
    )
    rows = Rows(p, (*outer, block), lambda *i: M[i], lambda *i: L[i], lambda b, h, qb, i: h)
    return _Softmax(outer, P, rows)
