"""What loops with annotations run over, and what is valid inside them (tvm_attention.lowering.narrowing lists
the annotations)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from tvm import tirx

from tvm_attention.compute import Bounds
from tvm_attention.compute.problem import ceil_div
from tvm_attention.lowering.spans import Scope, Span, SplitKeys


class Scopes:
    """Of one kernel, whose scalars ``symbols`` holds by name."""

    def __init__(self, symbols: Mapping[str, Any], bounds: Bounds, ragged: bool) -> None:
        self._symbols, self._bounds, self._ragged = symbols, bounds, ragged

    def narrowed(self, loop: Any, notes: dict[str, Any], scope: Scope) -> tuple[Span, Scope]:
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
        if notes.pop("split_lane", None) is not None:
            scope = replace(scope, split_lane=scope.split_lane + loop.loop_var)
        if notes.pop("value_tile", None) is not None:
            scope = replace(scope, last_tile=loop.loop_var.equal(loop.extent - 1))
        return self._by_units(loop, notes, span, scope)

    def last_key(self, scope: Scope) -> Any:
        """Of the batch element."""
        return self._bounds.keys(scope.batch) - 1

    def _by_units(
        self, loop: Any, notes: dict[str, Any], span: Span, scope: Scope
    ) -> tuple[Span, Scope]:
        """The same of loops over units of what is valid."""
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
