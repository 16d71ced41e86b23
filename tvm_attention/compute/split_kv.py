"""Split-KV decoding: few query rows share a key-value head, whose cache is read once.

The query heads of a group (and the rows of a short query) are folded into ``rows`` accumulators, so keys
and values are loaded once for all of them. The head dimension lies along the lanes; the keys are split
into ``splits`` runs computed in parallel, each keeping (values, sum, maximum), merged at the end
(Dao et al., "Flash-Decoding", 2023).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tvm import te, tirx

from tvm_attention.compute.exp2 import exp2
from tvm_attention.compute.problem import MASKED, Problem, ceil_div, float32


@dataclass(frozen=True)
class SplitKVTiles:
    """rows: query rows folded onto a key-value head (at least group x query length); lanes: keys of a
    score vector; score_lanes and value_lanes: lanes that divide the head and value dimension; streams:
    places of a split that are read at the same time."""

    rows: int
    lanes: int
    score_lanes: int
    value_lanes: int
    streams: int


def split_kv(p: Problem, tiles: SplitKVTiles) -> tirx.PrimFunc:
    """Stages QS, DOT, T<n> (halving tree), S, ML, M, P, LL, L, OT, PART, then MM, W, LS, OS, O."""
    rows, V, SV = tiles.rows, tiles.lanes, tiles.score_lanes
    vectors = ceil_div(ceil_div(p.key_length, V), p.splits)  # key vectors of a split
    outer = (p.batch, p.kv_heads, p.splits)
    n = tiles.streams
    chunk = V // n
    last_row = p.group * p.query_length - 1

    def query_of(row: Any) -> tuple[Any, Any]:
        r = tirx.min(row, last_row)
        return tirx.truncdiv(r, p.query_length), tirx.truncmod(r, p.query_length)

    def key_of(sp: Any, jo: Any, ji: Any) -> Any:
        # Neighbouring lanes take keys from different runs of the split: memory answers several sequential
        # reads faster than one. The order of keys within a split does not matter.
        run, stream, step = vectors * chunk, tirx.floormod(ji, n), tirx.floordiv(ji, n)
        return sp * vectors * V + stream * run + jo * chunk + step

    def clamped(key: Any) -> Any:
        return tirx.min(key, p.key_length - 1)

    def query_at(b: Any, h: Any, row: Any, column: Any) -> Any:
        head, i = query_of(row)
        return p.query[b, h * p.group + head, i, column] * p.scale_log2

    QS = te.compute((p.batch, p.kv_heads, rows, p.head_dim), query_at, name="QS")
    dd = te.reduce_axis((0, p.head_dim // SV), "dd")
    tree = te.compute(
        (*outer, vectors, V, rows, SV),
        lambda b, h, sp, jo, ji, r, x: te.sum(
            p.key[b, h, clamped(key_of(sp, jo, ji)), dd * SV + x] * QS[b, h, r, dd * SV + x],
            axis=dd,
        ),
        name="DOT",
    )
    # The partial sums of a vector are added by halves: a scalar sum of its lanes is a chain of adds.
    width = SV
    while width > 2:
        width //= 2
        tree = _halve(tree, width)

    def in_range(sp: Any, r: Any, jo: Any, ji: Any) -> Any:
        key = key_of(sp, jo, ji)
        valid = key < p.key_length
        return tirx.all(valid, p.visible(query_of(r)[1], key)) if p.causal else valid

    def last_halves(b: Any, h: Any, sp: Any, r: Any, jo: Any, ji: Any) -> Any:
        s = tree[b, h, sp, jo, ji, r, 0]
        if width > 1:
            s = s + tree[b, h, sp, jo, ji, r, 1]
        return s

    S = te.compute((*outer, rows, vectors, V), last_halves, name="S")
    SM = te.compute(
        (*outer, rows, vectors, V),
        lambda b, h, sp, r, jo, ji: tirx.Select(
            in_range(sp, r, jo, ji), S[b, h, sp, r, jo, ji], float32(MASKED)
        ),
        name="SM",
    )
    jm, js, jo = (te.reduce_axis((0, vectors), n) for n in ("jm", "js", "jo"))
    xm, xs, ji = (te.reduce_axis((0, V), n) for n in ("xm", "xs", "ji"))
    ML = te.compute(
        (*outer, rows, V),
        lambda b, h, sp, r, x: te.max(SM[b, h, sp, r, jm, x], axis=jm),
        name="ML",
    )
    M = te.compute(
        (*outer, rows), lambda b, h, sp, r: te.max(ML[b, h, sp, r, xm], axis=xm), name="M"
    )
    P = te.compute(
        (*outer, rows, vectors, V),
        lambda b, h, sp, r, jo, ji: tirx.Select(
            in_range(sp, r, jo, ji),
            exp2(SM[b, h, sp, r, jo, ji] - M[b, h, sp, r]),
            float32(0.0),
        ),
        name="P",
    )
    LL = te.compute(
        (*outer, rows, V),
        lambda b, h, sp, r, x: te.sum(P[b, h, sp, r, js, x], axis=js),
        name="LL",
    )
    L = te.compute(
        (*outer, rows), lambda b, h, sp, r: te.sum(LL[b, h, sp, r, xs], axis=xs), name="L"
    )
    OT = te.compute(
        (*outer, rows, p.value_dim),
        lambda b, h, sp, r, c: te.sum(
            P[b, h, sp, r, jo, ji] * p.value[b, h, clamped(key_of(sp, jo, ji)), c],
            axis=[jo, ji],
        ),
        name="OT",
    )
    return p.function(_merge(p, tiles, outer, M, L, OT))


def _halve(terms: te.Tensor, width: int) -> te.Tensor:
    """The first ``width`` elements of the last axis plus the next ``width``."""
    return te.compute(
        (*terms.shape[:-1], width),
        lambda b, h, sp, jo, ji, r, x: (
            terms[b, h, sp, jo, ji, r, x] + terms[b, h, sp, jo, ji, r, x + width]
        ),
        name=f"T{width}",
    )


def _merge(
    p: Problem, tiles: SplitKVTiles, outer: Any, M: te.Tensor, L: te.Tensor, OT: te.Tensor
) -> te.Tensor:
    rows, V, columns = tiles.rows, tiles.value_lanes, p.value_dim

    def part(b: Any, h: Any, sp: Any, r: Any, x: Any) -> Any:
        ends = tirx.if_then_else(x < columns + V, L[b, h, sp, r], M[b, h, sp, r])
        return tirx.if_then_else(x < columns, OT[b, h, sp, r, tirx.min(x, columns - 1)], ends)

    # One tensor carries a split's values, sum and maximum: the single consumer its stages hang from.
    PART = te.compute((*outer, rows, columns + 2 * V), part, name="PART")
    s1, s2, s3 = (te.reduce_axis((0, p.splits), f"s{n}") for n in (1, 2, 3))
    heads = (p.batch, p.kv_heads, rows)
    MM = te.compute(
        heads, lambda b, h, r: te.max(PART[b, h, s1, r, columns + V], axis=s1), name="MM"
    )
    W = te.compute(
        (*heads, p.splits),
        lambda b, h, r, s: exp2(PART[b, h, s, r, columns + V] - MM[b, h, r]),
        name="W",
    )
    LS = te.compute(
        heads,
        lambda b, h, r: te.sum(W[b, h, r, s2] * PART[b, h, s2, r, columns], axis=s2),
        name="LS",
    )
    OS = te.compute(
        (*heads, columns),
        lambda b, h, r, c: te.sum(W[b, h, r, s3] * PART[b, h, s3, r, c], axis=s3),
        name="OS",
    )

    def result(b: Any, h: Any, i: Any, c: Any) -> Any:
        kv_head = tirx.truncdiv(h, p.group)
        row = tirx.truncmod(h, p.group) * p.query_length + i
        return p.normalise(i, OS[b, kv_head, row, c], LS[b, kv_head, row])

    shape = (p.batch, p.query_heads, p.query_length, columns)
    return te.compute(shape, result, name="O")
