"""Decoding on a matrix unit: split-KV whose products are tiles'.

Keys are the rows of a left operand as they lie in memory, the query rows that share them are its right one,
so that a tile of products costs the same for one row as for sixteen. Weights are the rows of the other left
operand, values the right one, whose pairs of keys lowering puts beside each other. bfloat16 numbers are
multiplied as they are stored; int8 keys by a query's digits (tvm_attention.compute.digits), and their values
by the vector units.
"""

from __future__ import annotations

from typing import Any

from tvm import te, tirx

from tvm_attention.compute.digits import BYTES, digits_of
from tvm_attention.compute.operand import as_float32
from tvm_attention.compute.pieces import as_number, bits, rounded
from tvm_attention.compute.problem import LOWEST_SCORE, Problem, ceil_div, float32
from tvm_attention.compute.repair import Element, repaired
from tvm_attention.compute.scores import modified
from tvm_attention.compute.split_kv import weighted_values
from tvm_attention.compute.split_merge import merged
from tvm_attention.compute.split_weights import split_weights
from tvm_attention.compute.splits import Places, SplitKVTiles

KEYS, COLUMNS = 32, 16  # of a step of the loops over keys; of a tile
TILE_ROW = 64  # bytes
_DIGITS, _BASE = BYTES.count, BYTES.base


def matrix_decode(p: Problem, tiles: SplitKVTiles) -> tirx.PrimFunc:
    """Stages QS, (QL, QM, QF, QI, QD,) QB, DOT, (DF,) S, SM, ML, M, P, LL, L, (PW or OI,) OT, PART, then
    those of a merge (tvm_attention.compute.split_merge)."""
    places = Places(p, tiles)
    vectors = ceil_div(ceil_div(p["key_length"], KEYS), p["splits"])
    outer = (p["batch"], p.kv_heads, p["splits"])
    SM = _scores(p, tiles, places, outer, vectors)
    M, P, L = split_weights(p, places, outer, SM)
    of_values = weighted_values if tiles.integer else _values
    values = of_values(p, tiles, places, outer, vectors, P)
    return p.function(merged(p, tiles, outer, M, L, values))


def _scores(p: Problem, tiles: SplitKVTiles, places: Places, outer: Any, vectors: Any) -> te.Tensor:
    """Stages QS, (QL, QM, QF, QI, QD,) QB, DOT, (DF,) S and SM: the scores as they enter the softmax."""
    product = (_integers if tiles.integer else _numbers)(p, tiles, places, outer, vectors)

    def scaled(b: Any, h: Any, sp: Any, r: Any, jo: Any, ji: Any) -> Any:
        s = product(b, h, sp, jo, r, ji)
        scale = p.scale_of("key_scale", b, h, places.key(b, sp, jo, ji))
        return s if scale is None else s * scale

    shape = (*outer, tiles.rows, vectors, KEYS)
    S = te.compute(shape, scaled, name="S")

    def score(b: Any, h: Any, sp: Any, r: Any, jo: Any, ji: Any) -> Any:
        head, i = places.query(r)
        key = p.clamped(b, places.key(b, sp, jo, ji))
        s = modified(p, b, h * p["group"] + head, i, key, S[b, h, sp, r, jo, ji])
        return tirx.Select(places.in_range(b, sp, jo, ji), s, float32(LOWEST_SCORE))

    return te.compute(shape, score, name="SM")


def _numbers(p: Problem, tiles: SplitKVTiles, places: Places, outer: Any, vectors: Any) -> Element:
    """Products of bfloat16 numbers, in units of log2."""

    def query_at(b: Any, h: Any, row: Any, column: Any) -> Any:
        head, i = places.query(row)
        return p.query(b, h * p["group"] + head, i, column, raw=True)

    QS = te.compute((p["batch"], p.kv_heads, tiles.rows, p.head_dim), query_at, name="QS")
    QB = _right_operand(QS, tiles.rows, 2)
    d2, y = te.reduce_axis((0, p.head_dim // 2), "d2"), te.reduce_axis((0, 2), "y")

    def product(b: Any, h: Any, sp: Any, jo: Any, n: Any, ji: Any) -> Any:
        key = p.key(b, h, places.key(b, sp, jo, ji), d2 * 2 + y, raw=True)
        query = as_number(QB[b, h, d2, n, y])
        return te.sum(as_float32(key, "bfloat16") * query, axis=[d2, y])

    DOT = te.compute((*outer, vectors, tiles.rows, KEYS), product, name="DOT")
    return lambda *i: DOT(*i) * p["scale_log2"]


def _integers(p: Problem, tiles: SplitKVTiles, places: Places, outer: Any, vectors: Any) -> Element:
    """Products of int8 keys and the digits of a query, a column of a tile each."""

    def query_at(b: Any, h: Any, row: Any, column: Any) -> Any:
        head, i = places.query(row)
        return p.query(b, h * p["group"] + head, i, column) * p["scale_log2"]

    QS = te.compute((p["batch"], p.kv_heads, tiles.rows, p.head_dim), query_at, name="QS")
    QD, QF = digits_of(QS)
    columns = tiles.rows * _DIGITS
    QB = _right_operand(QD, columns, 4)
    d4, y = te.reduce_axis((0, p.head_dim // 4), "d4"), te.reduce_axis((0, 4), "y")

    def product(b: Any, h: Any, sp: Any, jo: Any, n: Any, ji: Any) -> Any:
        key = p.key(b, h, places.key(b, sp, jo, ji), d4 * 4 + y, raw=True)
        digit = QB[b, h, d4, n, y]
        return te.sum(tirx.Cast("int32", key) * tirx.Cast("int32", digit), axis=[d4, y])

    DOT = te.compute((*outer, vectors, columns, KEYS), product, name="DOT")

    def combined(b: Any, h: Any, sp: Any, jo: Any, r: Any, ji: Any) -> Any:
        first, second, third = (
            tirx.Cast("float32", DOT[b, h, sp, jo, r * _DIGITS + n, ji]) for n in range(_DIGITS)
        )
        small = (third * float32(1 / _BASE) + second) * float32(1 / _BASE)
        return (first + small) * QF[b, h, r]

    DF = te.compute((*outer, vectors, tiles.rows, KEYS), combined, name="DF")
    return lambda *i: DF(*i)


def _right_operand(Q: te.Tensor, columns: int, run: int) -> te.Tensor:
    """Stage QB: (..., words of four bytes of ``run`` numbers, column, number), from tensors of rows that
    are those columns, one after the other."""
    batch, heads, depth = Q.shape[0], Q.shape[1], int(Q.shape[-1])

    def number(b: Any, h: Any, d: Any, n: Any, y: Any) -> Any:
        row = (n,) if len(Q.shape) == 4 else (tirx.truncdiv(n, _DIGITS), tirx.truncmod(n, _DIGITS))
        return Q(b, h, *row, d * run + y)

    return te.compute((batch, heads, depth // run, columns, run), number, name="QB")


def _values(
    p: Problem, tiles: SplitKVTiles, places: Places, outer: Any, vectors: Any, P: te.Tensor
) -> Element:
    """Stages PW, the weights rounded to bfloat16, and OT, the weighted values of a split."""
    PW = te.compute(
        (*outer, vectors, tiles.rows, KEYS),
        lambda b, h, sp, jo, r, ji: tirx.Cast(
            "uint16", bits(rounded(P[b, h, sp, r, jo, ji])) >> tirx.const(16, "uint32")
        ),
        name="PW",
    )

    def value(b: Any, h: Any, sp: Any, jo: Any, ji: Any, c: Any) -> Any:
        return p.value(b, h, p.clamped(b, places.key(b, sp, jo, ji)), c)

    jo, ji, jox, jix = (
        te.reduce_axis((0, vectors if n[:2] == "jo" else KEYS), n)
        for n in ("jo", "ji", "jox", "jix")
    )
    OT = te.compute(
        (*outer, tiles.rows, p.value_dim),
        lambda b, h, sp, r, c: te.sum(
            as_number(PW[b, h, sp, jo, r, ji]) * value(b, h, sp, jo, ji, c), axis=[jo, ji]
        ),
        name="OT",
    )

    def term(b: Any, h: Any, sp: Any, r: Any, c: Any) -> tuple[Any, Any]:
        return P[b, h, sp, r, jox, jix], value(b, h, sp, jox, jix, c)

    return repaired(p, OT, tiles.value_lanes, term, [jox, jix])
