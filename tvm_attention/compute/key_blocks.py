"""Attention by blocks of keys: every block keeps its own maximum, sum and weighted values.

Two ways to end it. Blocks-and-merge stores each block's triple and merges them once at the end (as
split-KV decoding does, Dao et al., "Flash-Decoding", 2023). Streaming folds each block into a running
triple, the online softmax of Milakov and Gimelshein (arXiv:1805.02867): (max, sum, values) under

    (m, l, o) + (m', l', o') = (t, l 2^(m-t) + l' 2^(m'-t), o 2^(m-t) + o' 2^(m'-t)),  t = max(m, m')

is a commutative monoid, so the whole is one reduction over key blocks, and memory does not grow with
the number of keys. Keys past the end of a tensor are never read as scores: lowering shortens the key
loops to the valid keys (tvm_attention.lowering), which these expressions rely on.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tvm import te, tirx

from tvm_attention.compute.exp2 import power
from tvm_attention.compute.packing import key_rows, scale_row, value_columns
from tvm_attention.compute.problem import LOWEST_SCORE, Problem, ceil_div, float32
from tvm_attention.compute.repair import Element, repaired
from tvm_attention.compute.rows import Rows
from tvm_attention.compute.scores import scored, weight


@dataclass(frozen=True)
class KeyBlockTiles:
    """Sizes that shape the expression.

    query_block: query rows of a task; key_block: keys of a block; score_rows: keys of a score register
    tile; value_rows: value columns of an output register tile; pack_key, pack_value: whether a float32
    copy is made first, values so that a tile's columns are contiguous; lanes: of a vector of queries.
    """

    query_block: int
    key_block: int
    score_rows: int
    value_rows: int
    pack_key: bool
    pack_value: bool
    lanes: int


@dataclass(frozen=True)
class _Blocks:
    outer: tuple[Any, Any, Any]
    count: Any
    columns: int
    M: te.Tensor
    L: te.Tensor
    values: Element


def _blocks(p: Problem, tiles: KeyBlockTiles) -> _Blocks:
    """Stages QT, (KP,) ST, SC, M, P, L, (VP,) OT of every (query block, key block)."""
    block, keys, width = tiles.query_block, tiles.key_block, tiles.value_rows
    outer = (*p.outer, ceil_div(p["query_length"], block))
    count = ceil_div(p["key_length"], keys)
    SC = _scores(p, tiles, outer, count)

    def score(b: Any, h: Any, qb: Any, kb: Any, j: Any, i: Any) -> Any:
        rows = tiles.score_rows
        return SC[b, h, qb, kb, tirx.floordiv(j, rows), tirx.floormod(j, rows), i]

    j1, j2, j3, j4 = (te.reduce_axis((0, keys), f"j{n}") for n in (1, 2, 3, 4))
    M = te.compute(
        (*outer, count, block),
        lambda b, h, qb, kb, i: te.max(score(b, h, qb, kb, j1, i), axis=j1),
        name="M",
    )
    P = te.compute(
        (*outer, count, keys, block),
        lambda b, h, qb, kb, j, i: weight(p, score(b, h, qb, kb, j, i), M[b, h, qb, kb, i]),
        name="P",
    )
    L = te.compute(
        (*outer, count, block),
        lambda b, h, qb, kb, i: te.sum(P[b, h, qb, kb, j2, i], axis=j2),
        name="L",
    )
    value = value_columns(p, tiles.pack_value, width)
    columns = -(-p.value_dim // width) * width

    def term(index: tuple[Any, ...], j: Any) -> tuple[Any, Any]:
        b, h, qb, kb, c, i = index
        return P[b, h, qb, kb, j, i], value(b, tirx.truncdiv(h, p["group"]), kb * keys + j, c)

    def product(*index: Any) -> Any:
        w, v = term(index, j3)
        return te.sum(v * w, axis=j3)

    OT = te.compute((*outer, count, columns, block), product, name="OT")
    values = repaired(p, OT, tiles.lanes, lambda *index: term(index, j4), [j4])
    return _Blocks(outer, count, columns, M, L, values)


def _scores(p: Problem, tiles: KeyBlockTiles, outer: Any, count: Any) -> te.Tensor:
    """Stages QT, (KP,) ST and SC, the scores as they enter the softmax."""
    block, keys, rows = tiles.query_block, tiles.key_block, tiles.score_rows
    scale = scale_row(p)
    QT = te.compute(
        (*outer, p.head_dim, block),
        lambda b, h, qb, d, i: p.query(b, h, qb * block + i, d) * scale(d),
        name="QT",
    )
    key = key_rows(p, tiles.pack_key)
    d = te.reduce_axis((0, p.head_dim), "d")
    shape = (*outer, count, keys // rows, rows, block)
    ST = te.compute(
        shape,
        lambda b, h, qb, kb, kt, kk, i: te.sum(
            key(b, tirx.truncdiv(h, p["group"]), kb * keys + kt * rows + kk, d)
            * QT[b, h, qb, d, i],
            axis=d,
        ),
        name="ST",
    )

    def place(b: Any, h: Any, qb: Any, kb: Any, kt: Any, kk: Any, i: Any) -> tuple[Any, ...]:
        return b, h, qb * block + i, kb * keys + kt * rows + kk

    return scored(p, ST, place)


def blocks_and_merge(p: Problem, tiles: KeyBlockTiles) -> tirx.PrimFunc:
    """Stages of :func:`_blocks`, then PART (a block's triple), MM, W, LS, N, OS, O.

    PART holds values, sum and maximum in one tensor: a single consumer for the stages before it to be
    computed at.
    """
    blocks = _blocks(p, tiles)
    block, columns = tiles.query_block, blocks.columns
    M, L = blocks.M, blocks.L

    def part(b: Any, h: Any, qb: Any, kb: Any, x: Any, i: Any) -> Any:
        ends = tirx.if_then_else(x < columns + 1, L[b, h, qb, kb, i], M[b, h, qb, kb, i])
        values = blocks.values(b, h, qb, kb, tirx.min(x, columns - 1), i)
        return tirx.if_then_else(x < columns, values, ends)

    PART = te.compute((*blocks.outer, blocks.count, columns + 2, block), part, name="PART")
    k1, k2, k3 = (te.reduce_axis((0, blocks.count), f"k{n}") for n in (1, 2, 3))
    MM = te.compute(
        (*blocks.outer, block),
        lambda b, h, qb, i: te.max(PART[b, h, qb, k1, columns + 1, i], axis=k1),
        name="MM",
    )
    W = te.compute(
        (*blocks.outer, blocks.count, block),
        lambda b, h, qb, kb, i: power(p, PART[b, h, qb, kb, columns + 1, i] - MM[b, h, qb, i]),
        name="W",
    )
    LS = te.compute(
        (*blocks.outer, block),
        lambda b, h, qb, i: te.sum(PART[b, h, qb, k3, columns, i] * W[b, h, qb, k3, i], axis=k3),
        name="LS",
    )
    OS = te.compute(
        (*blocks.outer, columns, block),
        lambda b, h, qb, x, i: te.sum(PART[b, h, qb, k2, x, i] * W[b, h, qb, k2, i], axis=k2),
        name="OS",
    )
    shape = (*blocks.outer, block)
    rows = Rows(p, shape, lambda *i: MM[i], lambda *i: LS[i], lambda b, h, qb, i: h)

    def result(b: Any, h: Any, i: Any, c: Any) -> Any:
        qb, ii = tirx.floordiv(i, block), tirx.floormod(i, block)
        return rows.finish(p, OS[b, h, qb, c, ii], b, h, qb, ii)

    return p.function(te.compute(p.out_shape, result, name="O"))


def streaming(p: Problem, tiles: KeyBlockTiles) -> tirx.PrimFunc:
    """Stages of :func:`_blocks`, then R (the running triple, a reduction over key blocks), N, O."""
    blocks = _blocks(p, tiles)
    block = tiles.query_block
    M, L = blocks.M, blocks.L

    def combine(x: Any, y: Any) -> Any:
        top = tirx.max(x[0], y[0])
        ex, ey = power(p, x[0] - top), power(p, y[0] - top)
        return top, x[1] * ex + y[1] * ey, x[2] * ex + y[2] * ey

    softmax = te.comm_reducer(
        combine, lambda *_: (float32(LOWEST_SCORE), float32(0.0), float32(0.0)), name="softmax"
    )
    kb = te.reduce_axis((0, blocks.count), "kb")
    R = te.compute(
        (*blocks.outer, blocks.columns, block),
        lambda b, h, qb, c, i: softmax(
            (M[b, h, qb, kb, i], L[b, h, qb, kb, i], blocks.values(b, h, qb, kb, c, i)), axis=kb
        ),
        name="R",
    )
    rows = Rows(
        p,
        (*blocks.outer, block),
        lambda b, h, qb, i: R[0][b, h, qb, 0, i],
        lambda b, h, qb, i: R[1][b, h, qb, 0, i],
        lambda b, h, qb, i: h,
    )

    def result(b: Any, h: Any, i: Any, c: Any) -> Any:
        qb, ii = tirx.floordiv(i, block), tirx.floormod(i, block)
        return rows.finish(p, R[2][b, h, qb, c, ii], b, h, qb, ii)

    return p.function(te.compute(p.out_shape, result, name="O"))
