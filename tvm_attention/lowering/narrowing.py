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
``whole_first``  beside it: those all of whose lanes have keys are a loop of their own, which clamps none
``split_lanes``  lanes of such a vector, that many at a time
``split_lane``   those lanes
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

from dataclasses import replace
from typing import Any

from tvm import tirx

from tvm_attention.compute.operand import is_nan
from tvm_attention.lowering.carrying import CLEARED, FIRST_BLOCK, callee
from tvm_attention.lowering.matrix_unit import MatrixUnit
from tvm_attention.lowering.overlapping import overlapped, split
from tvm_attention.lowering.pair_tiles import PairTiles
from tvm_attention.lowering.scopes import Scopes
from tvm_attention.lowering.spans import Scope, Span
from tvm_attention.lowering.statements import (
    load_of,
    sequence,
    statements,
    substituted,
    without_allocations,
)
from tvm_attention.lowering.strips import by_vectors
from tvm_attention.lowering.transposition import Transposition
from tvm_attention.lowering.unmasked_tiles import UnmaskedTile

_MOST = 2**31 - 1  # clamps nothing


class Narrowing:
    """Rewrites annotated loops; everything else is kept as it is."""

    def __init__(
        self,
        scopes: Scopes,
        transposition: Transposition,
        pair_tiles: PairTiles,
        matrix_unit: MatrixUnit,
        last_key: Any = None,
    ) -> None:
        """``last_key``: the symbol for what keys are clamped to, if there is one."""
        self._scopes, self._last_key = scopes, last_key
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
        if notes.pop("whole_first", None) is not None and self._last_key is not None:
            return self._in_two(stmt, notes, scope)
        if "task" in notes:
            scope = replace(scope, batch=stmt.loop_var)
        guarded = notes.pop("if_nan", None) is not None
        spoilt = notes.pop("if_above_zero", None) is not None
        unless = notes.pop(CLEARED, None)
        has_key = None
        if notes.pop("if_split_lane", None) is not None:
            assert scope.split_keys is not None
            if not scope.split_whole:
                has_key = scope.split_keys.has(scope.split_vector, scope.split_lane)
        span, scope = self._scopes.narrowed(stmt, notes, scope)
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
        if "split" in stmt.annotations and self._last_key is not None:
            body = substituted(body, {self._last_key: self._scopes.last_key(scope)})
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

    def _in_two(self, loop: Any, notes: dict[str, Any], scope: Scope) -> Any:
        """A loop over vectors of keys: those whose lanes all have one, then the others."""
        span, scope = self._scopes.narrowed(loop, notes, scope)
        assert scope.split_keys is not None
        # In memory: TVM would put the expression wherever a variable for it stands.
        counted = tirx.decl_buffer((1,), "int32", name="whole_vectors", scope="local", layout=None)
        whole = tirx.BufferLoad(counted, [0])
        count = tirx.max(tirx.min(scope.split_keys.whole, span.end), 0)
        parts: list[Any] = [tirx.AllocBuffer(counted), tirx.BufferStore(counted, count, [0])]
        both = without_allocations(loop.body, parts)
        first, later = (tirx.Var(f"{loop.loop_var.name}_{n}", "int32") for n in ("whole", "later"))
        body = self.rewrite(both, replace(scope, split_whole=True))
        body = substituted(body, {loop.loop_var: first, self._last_key: tirx.const(_MOST, "int32")})
        parts.append(tirx.For(first, loop.min, whole, loop.kind, body, None, notes))
        rest = [tirx.Bind(loop.loop_var, later + whole), *statements(self.rewrite(both, scope))]
        notes = {k: v for k, v in notes.items() if k != "prefetch"}
        left = span.end - whole
        parts.append(tirx.For(later, loop.min, left, loop.kind, sequence(rest), None, notes))
        return sequence(parts)

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


def _from_the_first(keys: Span | None) -> bool:
    """Whether a strip's keys begin where those of all other strips do."""
    return keys is not None and keys.first is None


def _load_inside(name: str, stmt: Any) -> Any:
    """The load of a buffer within the one store of a nest."""
    while isinstance(stmt, tirx.For):
        stmt = stmt.body
    return load_of(name, stmt.value)
