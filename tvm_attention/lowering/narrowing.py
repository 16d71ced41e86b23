"""Shortening loops to what is valid and visible.

Schedules mark loops with annotations; here, on block-free TIR, where only loops stand above the bodies,
their extents are shortened to what is valid and, when causal, visible:

===============  ===========================================================================
``task``         the outermost of this many nested loops whose iterations are independent tasks
``query_block``  blocks of that many query rows; defines the keys and rows of a task
``split``        splits of the keys, in vectors of that many; defines ``split_vectors`` inside
``split_chunk``  beside it: neighbouring keys that a vector takes
``group_rows``   rows of the query heads that share a key-value head
``pack_keys``    runs of that many rows of the key tensor; the loop inside covers the rows there are
``valid_keys``   keys of the task, in units of the given number
``valid_rows``   query rows of the task, in units of the given number
``key_block``    blocks of that many keys; defines ``block_keys`` inside
``key_blocks``   the same blocks, defining nothing
``block_keys``   keys of the current block, in units of the given number
``split_vectors``  key vectors of the current split
``split_lanes``  lanes of such a vector, that many at a time
``if_split_lane``  not at all unless the first of them has a key
``query_strip``  strips of that many query rows within the task
``query_vectors``  vectors of queries; a strip of fewer valid rows runs over fewer of them
``value_tile``   row tiles of which the last one stands for the row sums: no keys at all
``transposition``  a nest that becomes calls (tvm_attention.lowering.transposition)
``pairs_of_rows``, ``pairs_of_columns``  another (tvm_attention.lowering.pair_tiles)
``matrix_product``  another (tvm_attention.lowering.matrix_unit)
``matrix_task``  tasks that use the matrix unit
``unless_without_effect``  of a mask (tvm_attention.lowering.unmasked_tiles)
``overlapped``   strips whose scores are computed ahead (tvm_attention.lowering.overlapping)
``unless_key_blocks``  not at all if the task has a block of that many keys
``if_above_zero``  not at all unless the block's element of the stage VB is
``if_nan``       not at all unless the stage FLAG, computed before, is NaN
===============  ===========================================================================

It runs after CompactBufferAllocation, which would otherwise shrink buffers to task-dependent sizes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from tvm import tirx

from tvm_attention.compute import Bounds
from tvm_attention.compute.operand import is_nan
from tvm_attention.compute.problem import ceil_div
from tvm_attention.lowering.carrying import CLEARED, FIRST_BLOCK, callee
from tvm_attention.lowering.matrix_unit import MatrixUnit
from tvm_attention.lowering.overlapping import overlapped, split
from tvm_attention.lowering.pair_tiles import PairTiles
from tvm_attention.lowering.spans import Scope, Span, SplitKeys
from tvm_attention.lowering.statements import load_of, sequence, statements
from tvm_attention.lowering.strips import by_vectors
from tvm_attention.lowering.transposition import Transposition
from tvm_attention.lowering.unmasked_tiles import UnmaskedTile


class Narrowing:
    """Rewrites annotated loops; everything else is kept as it is."""

    def __init__(
        self,
        symbols: Mapping[str, Any],
        bounds: Bounds,
        ragged: bool,
        transposition: Transposition,
        pair_tiles: PairTiles,
        matrix_unit: MatrixUnit,
    ) -> None:
        self._symbols, self._bounds, self._ragged = symbols, bounds, ragged
        self._transposition, self._pair_tiles = transposition, pair_tiles
        self._matrix_unit = matrix_unit
        self._flag: Any = None  # the last stored element of the stage FLAG

    def rewrite(self, stmt: Any, scope: Scope) -> Any:
        """The statement with its annotated loops shortened, given what is valid around it."""
        if isinstance(stmt, tirx.SeqStmt):
            return tirx.SeqStmt(self._sequence(list(stmt.seq), scope))
        if isinstance(stmt, tirx.BufferStore) and stmt.buffer.name == "FLAG":
            self._flag = tirx.BufferLoad(stmt.buffer, stmt.indices)
        if isinstance(stmt, tirx.IfThenElse) and callee(stmt.condition) == FIRST_BLOCK:
            cases = (self.rewrite(s, scope) for s in (stmt.then_case, stmt.else_case))
            return tirx.IfThenElse(scope.first_block, *cases)
        if not isinstance(stmt, tirx.For):
            return stmt
        notes = dict(stmt.annotations)
        if "transposition" in notes:
            return self._transposed(stmt, scope)
        if self._pair_tiles.kind(stmt) is not None:
            assert scope.rows is not None
            return self._pair_tiles.rewrite(stmt, scope.rows.end, scope.keys_left)
        if "matrix_product" in notes:
            return self._matrix_unit.rewrite(stmt, scope)
        if "task" in notes:
            scope = replace(scope, batch=stmt.loop_var)
        guarded = notes.pop("if_nan", None) is not None
        spoilt = notes.pop("if_above_zero", None) is not None
        unless = notes.pop(CLEARED, None)
        has_key = None
        if notes.pop("if_split_lane", None) is not None:
            assert scope.split_keys is not None
            has_key = scope.split_keys.has(scope.split_vector, scope.split_lane)
        span, scope = self._narrow(stmt, notes, scope)
        body = self.rewrite(stmt.body, scope)
        ahead = None
        if notes.pop("overlapped", None) is not None and _from_the_first(scope.block_keys):
            ahead, body = split(body)
        if "query_strip" in stmt.annotations:
            assert scope.rows is not None
            body = by_vectors(body, scope.rows.end, int(stmt.annotations["query_strip"]))
        variable, extent = stmt.loop_var, span.end
        if span.first is not None:
            # Counted from zero: TVM makes all loops so, but misses the outer variable in inner bounds.
            variable, extent = tirx.Var(f"{variable.name}_from_zero", "int32"), span.count
            body = sequence([tirx.Bind(stmt.loop_var, variable + span.first), *statements(body)])
        if notes.pop("matrix_task", None) is not None:
            body = sequence(self._matrix_unit.session(statements(body)))
        loop = tirx.For(variable, stmt.min, extent, stmt.kind, body, stmt.thread_binding, notes)
        if has_key is not None:
            return tirx.IfThenElse(has_key, loop, None)
        if ahead is not None:
            return overlapped(loop, ahead, self._matrix_unit)
        if spoilt:
            return tirx.IfThenElse(
                _load_inside("VB", stmt.body) > tirx.const(0, "float32"), loop, None
            )
        if unless is not None:
            assert scope.keys is not None
            blocks = scope.keys.units(int(unless)).count
            return tirx.IfThenElse(blocks < 1, loop, None)
        if not guarded:
            return loop
        return tirx.IfThenElse(is_nan(self._flag), loop, None)

    def _sequence(self, stmts: list[Any], scope: Scope) -> list[Any]:
        tile = UnmaskedTile.of(stmts)
        if tile is None:
            return [self.rewrite(s, scope) for s in stmts]
        self._matrix_unit.unmasked = self._transposition.unmasked = tile
        rewritten = [(s, self.rewrite(s, scope)) for s in stmts if not tile.replaces(s)]
        self._matrix_unit.unmasked = self._transposition.unmasked = None
        ends = [tile.guarded(new) if s.same_as(tile.loops) else new for s, new in rewritten]
        return [*tile.start(), *ends]

    def _transposed(self, nest: Any, scope: Scope) -> Any:
        if "key_rows" in nest.annotations:  # of a tensor's keys instead of its queries
            return self._transposition.rewrite(nest, scope.keys_left, None)
        assert scope.rows is not None
        rows = scope.rows.end if scope.rows_left is None else scope.rows_left
        return self._transposition.rewrite(nest, rows, scope.keys_left)

    def _narrow(self, loop: Any, notes: dict[str, Any], scope: Scope) -> tuple[Span, Scope]:
        """What the loop runs over and the scope inside it; takes the annotations off."""
        span = Span(None, loop.extent)
        if (block := notes.pop("query_block", None)) is not None:
            first = notes.pop("first_row", loop.loop_var * int(block))
            scope = self._query_scope(scope.batch, first, notes.pop("rows", int(block)))
            assert scope.rows is not None
            notes["begun"] = scope.rows.end > 0  # for the distribution of tasks
        elif (lanes := notes.pop("split", None)) is not None:
            chunk = int(notes.pop("split_chunk"))
            scope = self._split_scope(scope.batch, loop.loop_var, int(lanes), chunk)
            notes["begun"] = self._bounds.queries(scope.batch) > 0
        elif notes.pop("group_rows", None) is not None:
            span = Span(None, tirx.min(loop.extent, self._group_rows()))
        elif (size := notes.pop("pack_keys", None)) is not None:
            scope = replace(
                scope, keys=self._packed(scope.batch).within(loop.loop_var * size, size)
            )
        elif (size := notes.pop("key_block", None)) is not None:
            assert scope.keys is not None
            span = scope.keys.units(int(size))
            block = loop.loop_var * int(size), int(size)
            first = loop.loop_var.equal(0 if span.first is None else span.first)
            here = scope.keys.within(*block)
            scope = replace(scope, block_keys=here, key_block=block, first_block=first)
        elif (size := notes.pop("key_blocks", None)) is not None:
            assert scope.keys is not None
            span = scope.keys.units(int(size))
        elif (size := notes.pop("query_strip", None)) is not None:
            span, scope = self._strip_scope(loop.loop_var, int(size), scope)
        if (lanes := notes.pop("split_lanes", None)) is not None:
            scope = replace(scope, split_lane=loop.loop_var * int(lanes))
        if notes.pop("value_tile", None) is not None:
            scope = replace(scope, last_tile=loop.loop_var.equal(loop.extent - 1))
        for name, valid in (
            ("valid_keys", scope.keys),
            ("valid_rows", scope.rows),
            ("block_keys", scope.block_keys),
            ("split_vectors", scope.split_vectors),
        ):
            if (unit := notes.pop(name, None)) is not None:
                assert valid is not None
                span = valid.units(int(unit))
                left = valid.end - loop.loop_var * int(unit)
                changed = {
                    "valid_rows": {"rows_left": left},
                    "split_vectors": {"split_vector": loop.loop_var},
                }
                scope = replace(scope, **changed.get(name, {"keys_left": left}))
                if name == "block_keys" and scope.last_tile is not None:
                    none = 0 if span.first is None else span.first
                    span = Span(span.first, tirx.Select(scope.last_tile, none, span.end))
        return span, scope

    def _query_scope(self, b: Any, start: Any, most: Any) -> Scope:
        bounds = self._bounds
        rows = tirx.min(most, bounds.queries(b) - start)
        keys = self._keys(b, start, start + rows - 1)
        return Scope(batch=b, keys=keys, rows=Span(None, rows), first_row=start)

    def _strip_scope(self, index: Any, size: int, scope: Scope) -> tuple[Span, Scope]:
        """A strip's own rows, and the keys of the block that they see: fewer than its task does."""
        assert scope.rows is not None
        start = index * size
        rows = tirx.min(size, scope.rows.end - start)
        here = scope.block_keys
        if scope.key_block is not None and (self._bounds.causal or self._bounds.window):
            first = scope.first_row + start
            here = self._keys(scope.batch, first, first + rows - 1).within(*scope.key_block)
            if here.first is None:
                here = Span(None, tirx.max(here.end, 0))
        inside = replace(scope, rows=Span(None, rows), block_keys=here)
        return scope.rows.units(size), inside

    def _split_scope(self, b: Any, index: Any, lanes: int, chunk: int) -> Scope:
        keys = self._keys(b, 0, self._symbols["query_length"] - 1)
        vectors = ceil_div(ceil_div(keys.count, lanes), self._symbols["splits"])
        before = index * vectors * lanes
        left = ceil_div(keys.count - before, chunk)
        return Scope(
            batch=b,
            split_vectors=Span(None, tirx.max(tirx.min(vectors, left), 0)),
            split_keys=SplitKeys(before, keys.count, vectors, lanes, chunk),
        )

    def _keys(self, b: Any, first_row: Any, last_row: Any) -> Span:
        """Keys that any of the rows may see."""
        first = self._bounds.first_key(b, first_row)
        end = self._bounds.end_key(b, last_row)
        if isinstance(first, int):
            return Span(None, tirx.max(end, 0))
        return Span(first, end)

    def _group_rows(self) -> Any:
        return self._symbols["group"] * self._symbols["query_length"]

    def _packed(self, memory_batch: Any) -> Span:
        """Rows of the key tensor that hold keys."""
        rows, s = self._symbols["key_rows"], self._symbols
        if not self._ragged:
            return Span(None, rows)
        padded = s["kv_batches"].equal(s["batch"])
        return Span(None, tirx.Select(padded, self._bounds.keys(memory_batch), rows))


def _from_the_first(keys: Span | None) -> bool:
    """Whether a strip's keys begin where those of all other strips do."""
    return keys is not None and keys.first is None


def _load_inside(name: str, stmt: Any) -> Any:
    """The load of a buffer within the one store of a nest."""
    while isinstance(stmt, tirx.For):
        stmt = stmt.body
    return load_of(name, stmt.value)
