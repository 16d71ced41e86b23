"""Shortening loops to what is valid and visible.

Schedules mark loops with annotations; here, on block-free TIR, where only loops stand above the bodies,
their extents are shortened to what is valid and, when causal, visible:

===============  ===========================================================================
``task``         the outermost of this many nested loops whose iterations are independent tasks
``query_block``  blocks of that many query rows; defines the keys and rows of a task
``split``        splits of the keys, in vectors of that many; defines ``split_vectors`` inside
``split_chunk``  beside it: neighbouring keys that a vector takes
``valid_keys``   keys of the task, in units of the given number
``valid_rows``   query rows of the task, in units of the given number
``key_block``    blocks of that many keys; defines ``block_keys`` inside
``key_blocks``   the same count of blocks, defining nothing
``block_keys``   keys of the current block, in units of the given number
``split_vectors``  key vectors of the current split
===============  ===========================================================================

It runs after CompactBufferAllocation, which would otherwise shrink buffers to task-dependent sizes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from tvm import tirx

from tvm_attention.compute.problem import ceil_div


@dataclass(frozen=True)
class Scope:
    """What is valid at a place in the loop nest, None where nothing is said."""

    keys: Any = None
    rows: Any = None
    block_keys: Any = None
    split_vectors: Any = None


class Narrowing:
    """Rewrites annotated loops; everything else is kept as it is."""

    def __init__(self, symbols: Mapping[str, Any], causal: bool) -> None:
        self.causal = causal
        self.queries, self.keys = symbols["query_length"], symbols["key_length"]
        self.offset, self.splits = symbols["causal_offset"], symbols["splits"]

    def rewrite(self, stmt: Any, scope: Scope) -> Any:
        """The statement with its annotated loops shortened, given what is valid around it."""
        if isinstance(stmt, tirx.SeqStmt):
            return tirx.SeqStmt([self.rewrite(s, scope) for s in stmt.seq])
        if not isinstance(stmt, tirx.For):
            return stmt
        notes = dict(stmt.annotations)
        extent, scope = self._narrow(stmt, notes, scope)
        body = self.rewrite(stmt.body, scope)
        return tirx.For(
            stmt.loop_var, stmt.min, extent, stmt.kind, body, stmt.thread_binding, notes
        )

    def _narrow(self, loop: Any, notes: dict[str, Any], scope: Scope) -> tuple[Any, Scope]:
        """The loop's extent and the scope inside it; takes the annotations off."""
        extent = loop.extent
        if (block := notes.pop("query_block", None)) is not None:
            scope = self._query_scope(loop.loop_var, int(block))
        elif (lanes := notes.pop("split", None)) is not None:
            scope = self._split_scope(loop.loop_var, int(lanes), int(notes.pop("split_chunk")))
        elif (size := notes.pop("key_block", None)) is not None:
            extent = ceil_div(scope.keys, int(size))
            here = tirx.min(int(size), scope.keys - loop.loop_var * int(size))
            scope = replace(scope, block_keys=here)
        elif (size := notes.pop("key_blocks", None)) is not None:
            extent = ceil_div(scope.keys, int(size))
        for name, valid in (
            ("valid_keys", scope.keys),
            ("valid_rows", scope.rows),
            ("block_keys", scope.block_keys),
            ("split_vectors", scope.split_vectors),
        ):
            if (unit := notes.pop(name, None)) is not None:
                extent = valid if int(unit) == 1 else ceil_div(valid, int(unit))
        return extent, scope

    def _query_scope(self, index: Any, block: int) -> Scope:
        first = index * block
        rows = tirx.min(block, self.queries - first)
        keys = self.keys
        if self.causal:  # the last row sees the most; a task that sees none still computes one key
            keys = tirx.max(tirx.min(keys, first + rows + self.offset), 1)
        return Scope(keys=keys, rows=rows)

    def _split_scope(self, index: Any, lanes: int, chunk: int) -> Scope:
        vectors = ceil_div(ceil_div(self.keys, lanes), self.splits)
        left = ceil_div(self.keys - index * vectors * lanes, chunk)
        return Scope(split_vectors=tirx.max(tirx.min(vectors, left), 0))
