"""Loop nests that multiply matrices of pieces become calls of the matrix unit's functions.

A schedule annotates the outermost loop of the nest of one tile with ``matrix_product``, its number of
16-row tiles; the loops inside, over columns, pieces and depth, are annotated ``tile``. Operands lie as
(..., tile of rows, step, piece, row, number) on the left, so that a tile is contiguous, and as (..., pair of
numbers, piece, column) on the right.
"""

from __future__ import annotations

from typing import Any

import tvm
from tvm import tirx

from tvm_attention.compute.matrix import DEPTH
from tvm_attention.lowering.matrix_ir import (
    BEGIN,
    END,
    FILL,
    ROWS,
    TILE_BYTES,
    product_ir,
    product_name,
    session_ir,
)
from tvm_attention.lowering.spans import Scope, Span
from tvm_attention.lowering.statements import load_of, sequence

_LEFT, _RIGHT = ("KP", "VP"), ("QB", "PB")


class MatrixUnit:
    """Rewrites the annotated nests of one kernel."""

    def __init__(self) -> None:
        self._used: set[tuple[int, int, int, int]] = set()

    def rewrite(self, nest: Any, scope: Scope) -> Any:
        """The nest as calls: of scores (rows are keys), or of weighted values (the depth is keys)."""
        row_tiles = int(nest.annotations["matrix_product"])
        loops, store = [], nest
        while isinstance(store, tirx.For):
            loops.append(store)
            store = store.body
        store = store.seq[-1] if isinstance(store, tirx.SeqStmt) else store
        left, right = (_operand(names, store.value) for names in (_LEFT, _RIGHT))
        of_scores = left.source.name == "KP"
        steps = Span(None, int(left.source.shape[-4]))
        if not of_scores:
            assert scope.block_keys is not None
            steps = scope.block_keys.units(DEPTH)
        call = self._call(row_tiles, left, right, store, steps, scope.rows_left)
        stmts = [call]
        if of_scores:
            stmts.append(_filled(store, row_tiles * ROWS, scope.keys_left))
        body: Any = sequence(stmts)
        if not of_scores and scope.last_tile is not None:
            body = tirx.IfThenElse(tirx.Not(scope.last_tile), body, None)
        for loop in reversed(loops):
            body = tirx.For(loop.loop_var, loop.min, 1, tirx.ForKind.SERIAL, body)
        return body

    @property
    def is_used(self) -> bool:
        return bool(self._used)

    def session(self, stmts: list[Any]) -> list[Any]:
        """A task's statements with the tile registers configured around them."""
        begin, end = (tirx.Evaluate(tirx.call_extern("int32", f)) for f in (BEGIN, END))
        return [begin, *stmts, end]

    def linked(self, stmt: Any) -> Any:
        """The statement with the functions it calls linked into its module."""
        if not self.is_used:
            return stmt
        for code in [session_ir(), *(product_ir(*use) for use in sorted(self._used))]:
            text = tvm.ir.StringImm(code)
            stmt = tirx.AttrStmt(tvm.ir.StringImm("import"), "pragma_import_llvm", text, stmt)
        return stmt

    def _call(
        self, row_tiles: int, left: Any, right: Any, store: Any, steps: Span, columns: Any
    ) -> Any:
        counts = int(left.source.shape[-3]), int(right.source.shape[-2])
        use = (row_tiles, *counts, _limit(store.value.b, counts))
        self._used.add(use)
        pieces, columns_held = (int(extent) for extent in right.source.shape[-2:])
        first = 0 if steps.first is None else steps.first
        arguments = [
            tirx.address_of(left),
            _bytes(TILE_BYTES * int(left.source.shape[-3]) * int(left.source.shape[-4])),
            tirx.address_of(right),
            _bytes(4 * pieces * columns_held),
            _bytes(4 * columns_held),
            tirx.address_of(tirx.BufferLoad(store.buffer, store.indices)),
            _bytes(4 * int(store.buffer.shape[-1])),
            first,
            steps.end - first,
            columns,
        ]
        return tirx.Evaluate(tirx.call_extern("int32", product_name(*use), *arguments))


def _operand(names: tuple[str, ...], expression: Any) -> Any:
    loads = (load_of(name, expression) for name in names)
    return next(load for load in loads if load is not None)


def _limit(term: Any, counts: tuple[int, int]) -> int:
    """Pieces m and n are multiplied where m + n is less than this: all of them, if nothing is said."""
    if not isinstance(term, tirx.Select):
        return sum(counts) - 1
    assert isinstance(term.condition, tirx.LT)
    return int(term.condition.b)


def _bytes(count: int) -> Any:
    return tirx.const(count, "int64")


def _filled(store: Any, rows: int, keys_left: Any) -> Any:
    """Rows of scores beyond the last key, which the weights are computed from in whole tiles."""
    call = tirx.call_extern(
        "int32",
        FILL,
        tirx.address_of(tirx.BufferLoad(store.buffer, store.indices)),
        _bytes(4 * int(store.buffer.shape[-1])),
        tirx.max(keys_left, 0),
        rows,
    )
    return tirx.IfThenElse(keys_left < rows, tirx.Evaluate(call), None)
