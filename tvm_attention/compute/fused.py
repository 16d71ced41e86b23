"""Attention as one GPU kernel: blocks of keys stream through shared memory, the state stays in registers.

Online softmax (Milakov and Gimelshein, arXiv:1805.02867) as in tvm_attention.compute.key_blocks, with two
differences that threads without a common cache make. Keys and values are stages of their own, of which a
block of threads makes one copy; and the monoid carries, beside a row's maximum and sum, all columns that
a thread owns of it, so that those two are kept once a thread and not once an element. A thread's sum is
over its own keys: the threads of a row add theirs when the last block is done.
"""

from __future__ import annotations

from typing import Any

from tvm import te, tirx

from tvm_attention.compute.device import DeviceTiles, Tasks, row_of
from tvm_attention.compute.exp2 import power
from tvm_attention.compute.fused_block import maxima, scores, weighted
from tvm_attention.compute.problem import LOWEST_SCORE, Problem, float32
from tvm_attention.compute.rows import Rows
from tvm_attention.compute.scores import weight

State = list[te.Tensor]


def fused(p: Problem, tiles: DeviceTiles) -> tirx.PrimFunc:
    """Stages of :func:`_running_state` and :func:`_row_sums`, then N, (LSE,) O: (batch, head, block of
    queries, row thread, column thread, row, column), which lowering stores where the caller has them."""
    at = Tasks(p, tiles)
    R = _running_state(p, at)
    LT = _row_sums(at, R)
    rows = Rows(p, tuple(LT.shape), lambda *i: R[0][i], lambda *i: LT[i], lambda *i: i[1])

    def result(*index: Any) -> Any:
        *thread, c = index
        return rows.finish(p, _picked(R[2:], tuple(thread), c), *thread)

    return p.function(te.compute((*LT.shape, tiles.columns), result, name="O"))


def fused_split_kv(p: Problem, tiles: DeviceTiles) -> tirx.PrimFunc:
    """Decoding: the keys are split over blocks of threads, whose results a second grid merges (Dao et al.,
    "Flash-Decoding", 2023). Stages of :func:`_running_state` and :func:`_row_sums`, PART (maximum, sum and
    columns of a thread's rows), then MM, TS, OS, N, (LSE,) O: (batch, key-value head, row thread, column
    thread, row, column)."""
    at = Tasks(p, tiles)
    R = _running_state(p, at)
    LT = _row_sums(at, R)
    fields = [R[0], LT, *R[2:]]
    PART = te.compute(
        (*LT.shape, tiles.columns + 2), lambda *i: _picked(fields, i[:-1], i[-1]), name="PART"
    )
    s1, s2, s3 = (te.reduce_axis((0, p["splits"]), f"s{n}") for n in (1, 2, 3))
    own = (*at.outer[:2], tiles.row_threads, tiles.column_threads, tiles.rows)

    def part(index: tuple[Any, ...], split: Any, field: Any) -> Any:
        b, h, *thread = index
        return PART(b, h, split, *thread, field)

    MM = te.compute(own, lambda *i: te.max(part(i, s1, 0), axis=s1), name="MM")

    def share(index: tuple[Any, ...], split: Any) -> Any:
        return power(p, part(index, split, 0) - MM[index])

    TS = te.compute(own, lambda *i: te.sum(part(i, s2, 1) * share(i, s2), axis=s2), name="TS")
    OS = te.compute(
        (*own, tiles.columns),
        lambda *i: te.sum(part(i[:-1], s3, i[-1] + 2) * share(i[:-1], s3), axis=s3),
        name="OS",
    )
    rows = Rows(
        p, own, lambda *i: MM[i], lambda *i: TS[i],
        lambda b, h, i0, c0, i1: at.query((b, h, 0), row_of(tiles, i0, i1))[0],
    )  # fmt: skip
    return p.function(
        te.compute((*own, tiles.columns), lambda *i: rows.finish(p, OS[i], *i[:-1]), name="O")
    )


def _row_sums(at: Tasks, R: State) -> te.Tensor:
    """Stages LS (sums over the keys of each thread, where all threads see them) and LT (over all keys)."""
    t = at.tiles
    LS = te.compute(
        (*at.outer, t.rows, t.row_threads, t.column_threads),
        lambda b, h, n, i1, i0, c0: R[1][b, h, n, i0, c0, i1],
        name="LS",
    )
    cc = te.reduce_axis((0, t.column_threads), "cc")
    own = (*at.outer, t.row_threads, t.column_threads, t.rows)  # what each thread keeps for itself
    return te.compute(
        own, lambda b, h, n, i0, c0, i1: te.sum(LS[b, h, n, i1, i0, cc], axis=cc), name="LT"
    )


def _running_state(p: Problem, at: Tasks) -> State:
    """Stages QT, KT, VT (shared by a block), ST, SC (scores), MP, MS, M (maximum of a row's keys), P, PS
    (weights), LP, OT, (FLAG, OX,) and R: maximum, sum and columns of what each thread owns."""
    t = at.tiles
    SC = scores(p, at)
    outer, own = (*at.outer, at.key_blocks), (t.row_threads, t.column_threads)
    M = maxima(at, outer, SC)
    P = te.compute(
        (*outer, *own, t.rows, t.keys),
        lambda *i: weight(p, SC[i], M[i[:-1]]),
        name="P",
    )
    j = te.reduce_axis((0, t.keys), "j_sum")
    LP = te.compute((*outer, *own, t.rows), lambda *i: te.sum(P(*i, j), axis=j), name="LP")
    columns = weighted(p, at, outer, P)

    def combine(x: Any, y: Any) -> Any:
        top = tirx.max(x[0], y[0])
        ex, ey = power(p, x[0] - top), power(p, y[0] - top)
        return (top, *(a * ex + b * ey for a, b in zip(x[1:], y[1:], strict=True)))

    def identity(*_: Any) -> Any:
        return (float32(LOWEST_SCORE), *[float32(0.0)] * (t.columns + 1))

    softmax = te.comm_reducer(combine, identity, name="softmax")
    kb = te.reduce_axis((0, at.key_blocks), "kb")

    def term(*index: Any) -> Any:
        *task, i0, c0, i1 = index
        here = (*task, kb, i0, c0, i1)
        return softmax((M[here], LP[here], *(columns(*here, c) for c in range(t.columns))), axis=kb)

    state: State = te.compute((*at.outer, *own, t.rows), term, name="R")
    return state


def _picked(fields: State, index: tuple[Any, ...], c: Any) -> Any:
    """Field ``c`` of the state: once the loop over c is unrolled, the others vanish."""
    value = fields[0][index]
    for n in range(1, len(fields)):
        value = tirx.Select(tirx.EQ(c, n), fields[n][index], value)
    return value
