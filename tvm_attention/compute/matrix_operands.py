"""Queries, keys and values as pieces in tiles, the operands of a matrix unit's products.

A left operand's tiles are of (row, number), the right one holds pairs of rows, as matrix units take them.
bfloat16 numbers are pieces as they are stored: queries and values are rearranged as pairs, with no detour by
way of float32. Packed values hold zero for NaN and Inf.
"""

from __future__ import annotations

from typing import Any

from tvm import te, tirx

from tvm_attention.compute.online import Strips
from tvm_attention.compute.operand import is_finite
from tvm_attention.compute.packing import scale_row, unit_row
from tvm_attention.compute.pieces import (
    NO_PIECE,
    PIECES,
    as_number,
    beside,
    factor_piece,
    finite,
    of_pair,
    pair,
    signed,
    stored_piece,
)
from tvm_attention.compute.problem import Problem, float32

TILE_ROWS, DEPTH = 16, 32  # of a tile of a left operand: rows, and numbers that a row holds


class Operands:
    """The stages of one expression; values are padded to ``width`` columns."""

    def __init__(self, p: Problem, at: Strips, width: int) -> None:
        self.p, self.at = p, at
        self.columns = -(-p.value_dim // width) * width
        self.depth = -(-p.head_dim // DEPTH) * DEPTH
        self.count = PIECES[p.workload.dtype]
        self.one = unit_row()

    def block_shape(self, *inner: Any) -> tuple[Any, ...]:
        p = self.p
        return (p["batch"], p.kv_heads, self.at.count, *inner)

    def tiles_shape(self, rows: int, depth: int) -> tuple[Any, ...]:
        """Of a left operand: (..., tile of rows, step of depth, piece, row, number)."""
        return self.block_shape(rows // TILE_ROWS, depth // DEPTH, self.count, TILE_ROWS, DEPTH)

    def queries(self) -> te.Tensor:
        """Stages (SCALE,) QT and QB, (..., pair of columns, piece, row); bfloat16 numbers are pieces as they
        are stored and need no QT."""
        p, at = self.p, self.at
        scale = scale_row(p, sign_only=p.workload.dtype != "float32")

        def stored(b: Any, h: Any, qb: Any, s: Any, d2: Any, n: Any, i: Any) -> Any:
            row = at.row(qb, s, i)
            numbers = [
                tirx.if_then_else(d < p.head_dim, p.query(b, h, row, d, raw=True), NO_PIECE)
                for d in (2 * d2, 2 * d2 + 1)
            ]
            return signed(beside(*numbers), scale(d2))

        if self.count == 1:
            return te.compute((*at.outer, self.depth // 2, 1, at.block), stored, name="QB")
        QT = te.compute(
            (*at.outer, p.head_dim, at.block),
            lambda b, h, qb, s, d, i: p.query(b, h, at.row(qb, s, i), d) * scale(d),
            name="QT",
        )

        def part(place: tuple[Any, ...], d: Any, n: Any, i: Any) -> Any:
            # Not a Select: TVM would drop the bound of an index, and read both sides.
            number = factor_piece(QT(*place, tirx.min(d, p.head_dim - 1), i), n, self.count)
            return tirx.if_then_else(d < p.head_dim, number, float32(0.0))

        return te.compute(
            (*at.outer, self.depth // 2, self.count, at.block),
            lambda b, h, qb, s, d2, n, i: pair(
                part((b, h, qb, s), 2 * d2, n, i), part((b, h, qb, s), 2 * d2 + 1, n, i)
            ),
            name="QB",
        )

    def keys(self) -> te.Tensor:
        """Stage KP, tiles of (key, column)."""
        p, keys = self.p, self.at.keys

        def part(b: Any, h: Any, kb: Any, jt: Any, dt: Any, n: Any, j: Any, d: Any) -> Any:
            key, column = kb * keys + jt * TILE_ROWS + j, dt * DEPTH + d
            number = stored_piece(p.key(b, h, key, column), n, self.count)
            return tirx.if_then_else(column < p.head_dim, number, NO_PIECE)

        return te.compute(self.tiles_shape(keys, self.depth), part, name="KP")

    def values(self) -> te.Tensor:
        """Stages VT and VP, tiles of (column, key); of bfloat16 VP alone, of (column, pair of keys)."""
        p, keys = self.p, self.at.keys

        def stored(b: Any, h: Any, kb: Any, ct: Any, jt: Any, n: Any, c: Any, j2: Any) -> Any:
            column, key = ct * TILE_ROWS + c, kb * keys + jt * DEPTH + 2 * j2
            numbers = [p.value(b, h, p.clamped(b, key + t), column, raw=True) for t in (0, 1)]
            return beside(
                *(tirx.if_then_else(column < p.value_dim, finite(x), NO_PIECE) for x in numbers)
            )

        if self.count == 1:
            *shape, numbers = self.tiles_shape(self.columns, keys)
            return te.compute((*shape, numbers // 2), stored, name="VP")
        VT = te.compute(
            self.block_shape(p.value_dim, keys),
            lambda b, h, kb, c, j: p.value(b, h, p.clamped(b, kb * keys + j), c) * self.one(c),
            name="VT",
        )

        def part(b: Any, h: Any, kb: Any, ct: Any, jt: Any, n: Any, c: Any, j: Any) -> Any:
            column = ct * TILE_ROWS + c
            number = VT[b, h, kb, tirx.min(column, p.value_dim - 1), jt * DEPTH + j]
            sound = tirx.Select(is_finite(number), number, float32(0.0))
            return tirx.if_then_else(
                column < p.value_dim, stored_piece(sound, n, self.count), NO_PIECE
            )

        return te.compute(self.tiles_shape(self.columns, keys), part, name="VP")

    def key(self, KP: te.Tensor, block: tuple[Any, ...], key: Any, m: Any, column: Any) -> Any:
        """Piece ``m`` of an element of the stage KP as a float32."""
        return as_number(_of_tiles(KP, block, key, m, column))

    def value(self, VP: te.Tensor, block: tuple[Any, ...], column: Any, m: Any, key: Any) -> Any:
        """The same of VP."""
        if self.count > 1:
            return as_number(_of_tiles(VP, block, column, m, key))
        pairs = _of_tiles(VP, block, column, m, tirx.floordiv(key, 2), DEPTH // 2)
        return of_pair(pairs, tirx.floormod(key, 2))


def _of_tiles(
    X: te.Tensor, block: tuple[Any, ...], row: Any, piece: Any, number: Any, depth: int = DEPTH
) -> Any:
    """An element of a left operand whose tiles' rows have ``depth`` elements."""
    row_tile, row_in = tirx.floordiv(row, TILE_ROWS), tirx.floormod(row, TILE_ROWS)
    step, number_in = tirx.floordiv(number, depth), tirx.floormod(number, depth)
    return X(*block, row_tile, step, piece, row_in, number_in)
