"""Split-KV decoding: few query rows share a key-value head, whose cache is read once.

The query heads of a group (and the rows of a short query) are folded into ``rows`` accumulators, so keys
and values are loaded once for all of them. The head dimension lies along the lanes; the keys are split
into ``splits`` runs computed in parallel, each keeping (values, sum, maximum), merged at the end
(Dao et al., "Flash-Decoding", 2023).
"""

from __future__ import annotations

from typing import Any

from tvm import te, tirx

from tvm_attention.compute.digit_pairs import pair_scores
from tvm_attention.compute.digits import BYTES, WORDS, digit_scores
from tvm_attention.compute.problem import LOWEST_SCORE, Problem, ceil_div, float32
from tvm_attention.compute.repair import Element, repaired
from tvm_attention.compute.scores import modified
from tvm_attention.compute.split_merge import merged
from tvm_attention.compute.split_weights import split_weights
from tvm_attention.compute.splits import Places, SplitKVTiles

# Weights that become float16 numbers are of 2**15 at most, not of one: those of 2**-29 of the largest have
# all their bits, and zero is what is below 2**-40 of it. The logarithm of that:
_LARGEST_HALF = 15.0


def split_kv(p: Problem, tiles: SplitKVTiles) -> tirx.PrimFunc:
    """Stages QS, (QL, QM, QF, QI, QD,) DOT, (DF,) DS or T<n> (halving tree), S, SM, ML, M, P, LL, L, (PH,)
    OI, OT, PART, then MM, W, LS, N, OS, OG."""
    p.clamp_where_needed()
    vectors = ceil_div(ceil_div(p["key_length"], tiles.lanes), p["splits"])  # of a split, at most
    outer = (p["batch"], p.kv_heads, p["splits"])
    places = Places(p, tiles)
    SM = _scores(p, tiles, places, outer, vectors)
    M, P, L = split_weights(p, places, outer, SM, _LARGEST_HALF if tiles.halves else 0.0)
    values = weighted_values(p, tiles, places, outer, vectors, P)
    return p.function(merged(p, tiles, outer, M, L, values))


def _scores(p: Problem, tiles: SplitKVTiles, places: Places, outer: Any, vectors: Any) -> te.Tensor:
    """Stages QS, DOT, DS or T<n>, S and SM, the scores as they enter the softmax."""
    rows, V, SV = tiles.rows, tiles.lanes, tiles.score_lanes

    def query_at(b: Any, h: Any, row: Any, column: Any) -> Any:
        head, i = places.query(row)
        number = p.query(b, h * p["group"] + head, i, column, raw=bool(tiles.halves))
        return number if tiles.halves else number * p["scale_log2"]

    QS = te.compute((p["batch"], p.kv_heads, rows, p.head_dim), query_at, name="QS")

    def key(b: Any, h: Any, sp: Any, jo: Any, ji: Any, d: Any) -> Any:
        return p.key(b, h, places.key(b, sp, jo, ji), d, raw=bool(tiles.integer))

    if tiles.integer == 2:
        product_of = pair_scores(QS, (*outer, vectors), V, key)
    elif tiles.integer:
        digits = WORDS if tiles.words else BYTES
        sums = digit_scores(QS, (*outer, vectors, V), key, digits, SV)
        product_of = _lanes_added(sums, tiles)
    else:
        both = 2 if tiles.halves == 1 else 1  # halves of a vector that go to the same sums
        dd = te.reduce_axis((0, p.head_dim // (SV * both)), "dd")
        half = te.reduce_axis((0, both), "half")

        def product(b: Any, h: Any, sp: Any, jo: Any, ji: Any, r: Any, x: Any) -> Any:
            d = dd * SV + x if both == 1 else (dd * both + half) * SV + x
            term = key(b, h, sp, jo, ji, d) * _wide(QS[b, h, r, d], tiles)
            return te.sum(term, axis=dd if both == 1 else [dd, half])

        DOT = te.compute((*outer, vectors, V, rows, SV), product, name="DOT")
        product_of = _lanes_added(DOT, tiles)

    def scaled(b: Any, h: Any, sp: Any, r: Any, jo: Any, ji: Any) -> Any:
        s = product_of(b, h, sp, jo, ji, r)
        if tiles.halves:
            s = s * p["scale_log2"]
        scale = p.scale_of("key_scale", b, h, places.key(b, sp, jo, ji))
        return s if scale is None else s * scale

    S = te.compute((*outer, rows, vectors, V), scaled, name="S")

    def score(b: Any, h: Any, sp: Any, r: Any, jo: Any, ji: Any) -> Any:
        head, i = places.query(r)
        key = p.clamped(b, places.key(b, sp, jo, ji))
        s = modified(p, b, h * p["group"] + head, i, key, S[b, h, sp, r, jo, ji])
        return tirx.Select(places.in_range(b, sp, jo, ji), s, float32(LOWEST_SCORE))

    return te.compute((*outer, rows, vectors, V), score, name="SM")


def weighted_values(
    p: Problem, tiles: SplitKVTiles, places: Places, outer: Any, vectors: Any, P: te.Tensor
) -> Element:
    """Stages PH, weights of float16, OI, the weighted values of a vector of keys, and OT, those of a
    split."""

    def term(index: tuple[Any, ...], jo: Any, ji: Any) -> tuple[Any, Any]:
        b, h, sp, r, c = index
        key = places.key(b, sp, jo, ji)
        weight_of, scale = P[b, h, sp, r, jo, ji], p.scale_of("value_scale", b, h, key)
        return weight_of if scale is None else weight_of * scale, p.value(
            b, h, p.clamped(b, key), c
        )

    if tiles.halves:
        PH = te.compute(P.shape, lambda *i: tirx.Cast("float16", P[i]), name="PH")
    extents = {"jo": vectors, "ji": tiles.lanes}
    jo, ji, *again = (te.reduce_axis((0, extents[n[:2]]), n) for n in ("jo", "ji", "jox", "jix"))

    def product(b: Any, h: Any, sp: Any, r: Any, vector: Any, c: Any) -> Any:
        w, v = term((b, h, sp, r, c), vector, ji)
        if tiles.halves:
            w = _wide(PH[b, h, sp, r, vector, ji], tiles)
        return te.sum(w * v, axis=ji)

    OI = te.compute((*outer, tiles.rows, vectors, p.value_dim), product, name="OI")
    OT = te.compute(
        (*outer, tiles.rows, p.value_dim),
        lambda b, h, sp, r, c: te.sum(OI[b, h, sp, r, jo, c], axis=jo),
        name="OT",
    )
    return repaired(p, OT, tiles.value_lanes, lambda *index: term(index, *again), again)


def _wide(stored: Any, tiles: SplitKVTiles) -> Any:
    """An element of a query, or a weight, as float32."""
    return tirx.Cast("float32", stored) if tiles.halves else stored


def _lanes_added(terms: te.Tensor, tiles: SplitKVTiles) -> Element:
    """The sums of the lanes: at once, as shuffles of many vectors; or by halves, as a scalar sum
    is a chain of adds."""
    width = int(terms.shape[-1])
    if tiles.shuffled:
        x = te.reduce_axis((0, width), "x")
        *outer, vectors, keys, rows, _ = terms.shape
        DS = te.compute(
            (*outer, vectors, rows, keys),
            lambda b, h, sp, jo, r, ji: te.sum(terms[b, h, sp, jo, ji, r, x], axis=x),
            name="DS",
        )
        return lambda b, h, sp, jo, ji, r: DS[b, h, sp, jo, r, ji]
    while width > 2:
        width //= 2
        terms = _halve(terms, width)
    return lambda *i: terms(*i, 0) + terms(*i, 1) if width > 1 else terms(*i, 0)


def _halve(terms: te.Tensor, width: int) -> te.Tensor:
    """The first ``width`` elements of the last axis plus the next ``width``."""
    return te.compute(
        (*terms.shape[:-1], width),
        lambda b, h, sp, jo, ji, r, x: (
            terms[b, h, sp, jo, ji, r, x] + terms[b, h, sp, jo, ji, r, x + width]
        ),
        name=f"T{width}",
    )
