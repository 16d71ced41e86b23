"""Loop nests that multiply matrices of pieces become calls of the matrix unit's functions.

A schedule annotates the outermost loop of the nest of one tile with ``matrix_product``, its number of
16-row tiles; the loops inside, over columns, pieces and depth, are annotated ``tile``. Operands lie as
(..., tile of rows, step, piece, row, number) on the left, so that a tile is contiguous, and as (..., pair of
numbers, piece, column) on the right.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import tvm
from tvm import tirx

from tvm_attention.compute.matrix_operands import DEPTH
from tvm_attention.lowering.matrix_ir import (
    BEGIN,
    END,
    FILL,
    PRODUCT,
    ROWS,
    STORE,
    TILE_BYTES,
    ZERO,
    order,
    product_ir,
    product_name,
    session_ir,
    step_ir,
    step_name,
)
from tvm_attention.lowering.spans import Scope, Span
from tvm_attention.lowering.statements import load_of, sequence, statements, substituted, with_body
from tvm_attention.lowering.unmasked_tiles import UnmaskedTile

_LEFT, _RIGHT = ("KP", "VP"), ("QB", "PB")


class MatrixUnit:
    """Rewrites the annotated nests of one kernel."""

    def __init__(self) -> None:
        self._used: set[tuple[int, int, int, int]] = set()
        self._stepped: set[tuple[int, int, int, int]] = set()
        self.unmasked: UnmaskedTile | None = None  # the tile of scores that is computed

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
        call = self._product(row_tiles, left, right, store, steps, scope.rows_left)
        stmts = [call]
        if of_scores:
            stmts.append(_filled(self._result(store), row_tiles * ROWS, scope.keys_left))
        body: Any = sequence(stmts)
        if not of_scores and scope.last_tile is not None:
            body = tirx.IfThenElse(tirx.Not(scope.last_tile), body, None)
        for loop in reversed(loops):
            body = tirx.For(loop.loop_var, loop.min, 1, tirx.ForKind.SERIAL, body)
        return body

    def interleaved(self, pairs: Any, scores: Any) -> Any:
        """The loop over pairs of keys that computes a tile of weights, made to compute a tile of scores as
        well, step by step; ``scores`` are its statements: a rewritten nest and what follows it."""
        tile = _Tile.of(scores)
        name, left, below, right, row, piece, out, out_row, _, steps, _ = tile.product.args
        use = next(use for use in self._used if product_name(*use) == name.value)
        self._stepped.add(use)
        # As many steps as there are, evenly among the pairs.
        pair, turns, count = pairs.loop_var, int(pairs.extent), int(steps) * len(order(*use[1:]))
        first, end = (tirx.floordiv((pair + n) * count, turns) for n in (0, 1))

        def step(number: Any) -> Any:
            call = _call(step_name(*use), left, below, right, row, piece, number)
            return tirx.IfThenElse(number < end, call, None)

        taken = [step(first + n) for n in range(-(-count // turns))]
        body = sequence([*taken, *statements(pairs.body)])
        weights = [_call(ZERO), with_body(pairs, body), _call(STORE, out, out_row)]
        return sequence([*tile.allocations, *weights, *tile.rest])

    def _result(self, store: Any) -> Any:
        """A load of a product's first element."""
        if self.unmasked is not None:
            return self.unmasked.at(store)
        return tirx.BufferLoad(store.buffer, store.indices)

    @property
    def is_used(self) -> bool:
        return bool(self._used)

    def session(self, stmts: list[Any]) -> list[Any]:
        """A task's statements with the tile registers configured around them."""
        return [_call(BEGIN), *stmts, _call(END)]

    def linked(self, stmt: Any) -> Any:
        """The statement with the functions it calls linked into its module."""
        if not self.is_used:
            return stmt
        products = (product_ir(*use) for use in sorted(self._used))
        steps = (step_ir(*use) for use in sorted(self._stepped))
        for code in [session_ir(), *products, *steps]:
            text = tvm.ir.StringImm(code)
            stmt = tirx.AttrStmt(tvm.ir.StringImm("import"), "pragma_import_llvm", text, stmt)
        return stmt

    def _product(
        self, row_tiles: int, left: Any, right: Any, store: Any, steps: Span, columns: Any
    ) -> Any:
        counts = int(left.source.shape[-3]), int(right.source.shape[-2])
        use = (row_tiles, *counts, _limit(store.value.b, counts))
        self._used.add(use)
        pieces, columns_held = (int(extent) for extent in right.source.shape[-2:])
        first = 0 if steps.first is None else steps.first
        result = self._result(store)
        arguments = [
            tirx.address_of(left),
            _bytes(TILE_BYTES * int(left.source.shape[-3]) * int(left.source.shape[-4])),
            tirx.address_of(right),
            _bytes(4 * pieces * columns_held),
            _bytes(4 * columns_held),
            tirx.address_of(result),
            _bytes(4 * int(result.source.shape[-1])),
            first,
            steps.end - first,
            columns,
        ]
        return _call(product_name(*use), *arguments)


@dataclass(frozen=True)
class _Tile:
    """The statements of a tile of scores: allocations, the call that computes it, the others."""

    allocations: list[Any]
    product: Any
    rest: list[Any]

    @classmethod
    def of(cls, stmt: Any) -> _Tile:
        """At the first place of all loops around the call: a tile is as wide as a strip."""
        around: dict[Any, Any] = {}
        allocations: list[Any] = []
        rest: list[Any] = []
        while not isinstance(stmt, tirx.Evaluate):
            if isinstance(stmt, tirx.For):
                around[stmt.loop_var] = tirx.const(0, "int32")
                stmt = stmt.body
                continue
            here = next(s for s in stmt.seq if _computes(s))
            others = [s for s in stmt.seq if not s.same_as(here)]
            allocations += [s for s in others if isinstance(s, tirx.AllocBuffer)]
            others = [s for s in others if not isinstance(s, tirx.AllocBuffer)]
            rest = [*(substituted(s, around) for s in others), *rest]
            stmt = here
        return cls(allocations, substituted(stmt, around).value, rest)


def _computes(stmt: Any) -> bool:
    """Whether a nest calls a product."""
    while isinstance(stmt, (tirx.For, tirx.SeqStmt)):
        stmt = stmt.body if isinstance(stmt, tirx.For) else stmt.seq[0]
    if not isinstance(stmt, tirx.Evaluate):
        return False
    return str(stmt.value.args[0].value).startswith(PRODUCT)


def _call(name: str, *arguments: Any) -> Any:
    return tirx.Evaluate(tirx.call_extern("int32", name, *arguments))


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


def _filled(result: Any, rows: int, keys_left: Any) -> Any:
    """Rows of scores beyond the last key, which the weights are computed from in whole tiles."""
    call = _call(
        FILL,
        tirx.address_of(result),
        _bytes(4 * int(result.source.shape[-1])),
        tirx.max(keys_left, 0),
        rows,
    )
    return tirx.IfThenElse(keys_left < rows, call, None)
