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

from tvm_attention.compute.exp2 import exp2
from tvm_attention.compute.problem import MASKED, Problem, ceil_div, float32


@dataclass(frozen=True)
class KeyBlockTiles:
    """Sizes that shape the expression.

    query_block: query rows of a task; key_block: keys of a block; score_rows: keys of a score register
    tile; value_rows: value columns of an output register tile; pack_value: whether the value tensor is
    first rearranged so that a tile's columns are contiguous.
    """

    query_block: int
    key_block: int
    score_rows: int
    value_rows: int
    pack_value: bool


@dataclass(frozen=True)
class _Blocks:
    outer: tuple[Any, Any, Any]
    count: Any
    columns: int
    M: te.Tensor
    L: te.Tensor
    OT: te.Tensor


def _blocks(p: Problem, tiles: KeyBlockTiles) -> _Blocks:
    """Stages QT, ST, M, P, L, (VP,) OT of every (query block, key block)."""
    block, keys, rows, width = (
        tiles.query_block, tiles.key_block, tiles.score_rows, tiles.value_rows,
    )  # fmt: skip
    outer = (p.batch, p.query_heads, ceil_div(p.query_length, block))
    count = ceil_div(p.key_length, keys)
    columns = -(-p.value_dim // width) * width

    def key_row(kb: Any, j: Any) -> Any:
        return tirx.min(kb * keys + j, p.key_length - 1)

    QT = te.compute(
        (*outer, p.head_dim, block),
        lambda b, h, qb, d, i: (
            p.query[b, h, tirx.min(qb * block + i, p.query_length - 1), d] * p.scale_log2
        ),
        name="QT",
    )
    d = te.reduce_axis((0, p.head_dim), "d")
    ST = te.compute(
        (*outer, count, keys // rows, rows, block),
        lambda b, h, qb, kb, kt, kk, i: te.sum(
            p.key[b, tirx.truncdiv(h, p.group), key_row(kb, kt * rows + kk), d]
            * QT[b, h, qb, d, i],
            axis=d,
        ),
        name="ST",
    )

    def visible(qb: Any, kb: Any, j: Any, i: Any) -> Any:
        return p.visible(qb * block + i, kb * keys + j)

    def score(b: Any, h: Any, qb: Any, kb: Any, j: Any, i: Any) -> Any:
        s = ST[b, h, qb, kb, tirx.floordiv(j, rows), tirx.floormod(j, rows), i]
        return tirx.Select(visible(qb, kb, j, i), s, float32(MASKED)) if p.causal else s

    def weight(b: Any, h: Any, qb: Any, kb: Any, j: Any, i: Any) -> Any:
        w = exp2(score(b, h, qb, kb, j, i) - M[b, h, qb, kb, i])
        return tirx.Select(visible(qb, kb, j, i), w, float32(0.0)) if p.causal else w

    j1, j2, j3 = (te.reduce_axis((0, keys), f"j{n}") for n in (1, 2, 3))
    M = te.compute(
        (*outer, count, block),
        lambda b, h, qb, kb, i: te.max(score(b, h, qb, kb, j1, i), axis=j1),
        name="M",
    )
    P = te.compute((*outer, count, keys, block), weight, name="P")
    L = te.compute(
        (*outer, count, block),
        lambda b, h, qb, kb, i: te.sum(P[b, h, qb, kb, j2, i], axis=j2),
        name="L",
    )

    def value(b: Any, kv_head: Any, kb: Any, j: Any, c: Any) -> Any:
        return p.value[b, kv_head, key_row(kb, j), tirx.min(c, p.value_dim - 1)]

    if tiles.pack_value:
        VP = te.compute(
            (p.batch, p.kv_heads, columns // width, count, keys, width),
            lambda b, h, t, kb, j, c: value(b, h, kb, j, t * width + c),
            name="VP",
        )

        def value_of(b: Any, h: Any, kb: Any, j: Any, c: Any) -> Any:
            return VP[
                b, tirx.truncdiv(h, p.group), tirx.floordiv(c, width), kb, j,
                tirx.floormod(c, width),
            ]  # fmt: skip
    else:

        def value_of(b: Any, h: Any, kb: Any, j: Any, c: Any) -> Any:
            return value(b, tirx.truncdiv(h, p.group), kb, j, c)

    OT = te.compute(
        (*outer, count, columns, block),
        lambda b, h, qb, kb, c, i: te.sum(
            value_of(b, h, kb, j3, c) * P[b, h, qb, kb, j3, i], axis=j3
        ),
        name="OT",
    )
    return _Blocks(outer, count, columns, M, L, OT)


def blocks_and_merge(p: Problem, tiles: KeyBlockTiles) -> tirx.PrimFunc:
    """Stages of :func:`_blocks`, then PART (a block's triple), MM, W, OS, O.

    PART holds values, sum and maximum in one tensor: a single consumer for the stages before it to be
    computed at.
    """
    blocks = _blocks(p, tiles)
    block, columns = tiles.query_block, blocks.columns
    M, L, OT = blocks.M, blocks.L, blocks.OT

    def part(b: Any, h: Any, qb: Any, kb: Any, x: Any, i: Any) -> Any:
        ends = tirx.if_then_else(x < columns + 1, L[b, h, qb, kb, i], M[b, h, qb, kb, i])
        return tirx.if_then_else(x < columns, OT[b, h, qb, kb, tirx.min(x, columns - 1), i], ends)

    PART = te.compute((*blocks.outer, blocks.count, columns + 2, block), part, name="PART")
    k1, k2 = (te.reduce_axis((0, blocks.count), f"k{n}") for n in (1, 2))
    MM = te.compute(
        (*blocks.outer, block),
        lambda b, h, qb, i: te.max(PART[b, h, qb, k1, columns + 1, i], axis=k1),
        name="MM",
    )
    W = te.compute(
        (*blocks.outer, blocks.count, block),
        lambda b, h, qb, kb, i: exp2(PART[b, h, qb, kb, columns + 1, i] - MM[b, h, qb, i]),
        name="W",
    )
    OS = te.compute(
        (*blocks.outer, columns + 1, block),
        lambda b, h, qb, x, i: te.sum(PART[b, h, qb, k2, x, i] * W[b, h, qb, k2, i], axis=k2),
        name="OS",
    )

    def result(b: Any, h: Any, i: Any, c: Any) -> Any:
        qb, ii = tirx.floordiv(i, block), tirx.floormod(i, block)
        return p.normalise(i, OS[b, h, qb, c, ii], OS[b, h, qb, columns, ii])

    return p.function(_output(p, result))


def streaming(p: Problem, tiles: KeyBlockTiles) -> tirx.PrimFunc:
    """Stages of :func:`_blocks`, then R (the running triple, a reduction over key blocks), O."""
    blocks = _blocks(p, tiles)
    block = tiles.query_block
    M, L, OT = blocks.M, blocks.L, blocks.OT

    def combine(x: Any, y: Any) -> Any:
        top = tirx.max(x[0], y[0])
        ex, ey = exp2(x[0] - top), exp2(y[0] - top)
        return top, x[1] * ex + y[1] * ey, x[2] * ex + y[2] * ey

    softmax = te.comm_reducer(
        combine, lambda *_: (float32(MASKED), float32(0.0), float32(0.0)), name="softmax"
    )
    kb = te.reduce_axis((0, blocks.count), "kb")
    R = te.compute(
        (*blocks.outer, blocks.columns, block),
        lambda b, h, qb, c, i: softmax(
            (M[b, h, qb, kb, i], L[b, h, qb, kb, i], OT[b, h, qb, kb, c, i]), axis=kb
        ),
        name="R",
    )

    def result(b: Any, h: Any, i: Any, c: Any) -> Any:
        qb, ii = tirx.floordiv(i, block), tirx.floormod(i, block)
        return p.normalise(i, R[2][b, h, qb, c, ii], R[1][b, h, qb, c, ii])

    return p.function(_output(p, result))


def _output(p: Problem, result: Any) -> te.Tensor:
    shape = (p.batch, p.query_heads, p.query_length, p.value_dim)
    return te.compute(shape, result, name="O")
