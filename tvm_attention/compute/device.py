"""How a GPU's blocks and threads divide the rows, keys and columns of attention: index arithmetic.

A block of ``row_threads`` x ``column_threads`` threads computes a block of query rows against one block of keys
after another. Thread (i0, j0) owns ``rows`` rows, ``keys`` keys of every block and ``columns`` value columns;
its rows are those of its scores and of its values alike, so that what is known of a row (its maximum, its
sum) stays in its registers. Rows and keys are dealt out in turn: neighbouring threads read neighbouring
rows of shared memory.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tvm import tirx

from tvm_attention.compute.problem import Problem, ceil_div


@dataclass(frozen=True)
class DeviceTiles:
    """Sizes that shape the expression: threads along rows and along keys and columns, and what each owns.
    ``adjacent``: columns of a thread that lie side by side in memory; it divides ``columns``. ``split``:
    whether the keys are split over blocks, for the query heads of a group at once, and merged after."""

    row_threads: int
    column_threads: int
    rows: int
    keys: int
    columns: int
    adjacent: int
    split: bool = False

    @property
    def query_block(self) -> int:
        return self.row_threads * self.rows

    @property
    def key_block(self) -> int:
        return self.column_threads * self.keys


class Tasks:
    """What a block of threads works on: (batch, head, row block) and, where keys are split, which split.

    Without splits a head is a query head and a row one of its queries. With splits it is a key-value head,
    whose rows are the queries of all heads of the group.
    """

    def __init__(self, p: Problem, tiles: DeviceTiles) -> None:
        self.p, self.tiles = p, tiles
        length = p["query_length"]
        self.rows = p["group"] * length if tiles.split else length
        self.blocks = ceil_div(self.rows, tiles.query_block)
        heads = p.kv_heads if tiles.split else p["query_heads"]
        self.outer = (p["batch"], heads, self.blocks, *((p["splits"],) if tiles.split else ()))
        splits = p["splits"] if tiles.split else 1
        self.key_blocks = ceil_div(p["key_length"], tiles.key_block * splits)

    def kv_head(self, h: Any) -> Any:
        return h if self.tiles.split else tirx.truncdiv(h, self.p["group"])

    def query(self, task: tuple[Any, ...], i1: Any, i0: Any) -> tuple[Any, Any]:
        """Query head and query of a thread's row; where rows are those of a group, the last one repeated."""
        row = task[2] * self.tiles.query_block + i1 * self.tiles.row_threads + i0
        if not self.tiles.split:
            return task[1], row
        length = self.p["query_length"]
        r = tirx.min(row, self.rows - 1)
        return task[1] * self.p["group"] + tirx.truncdiv(r, length), tirx.truncmod(r, length)

    def key(self, task: tuple[Any, ...], kb: Any, j: Any) -> Any:
        """Key ``j`` of a block of keys."""
        if not self.tiles.split:
            return kb * self.tiles.key_block + j
        first = self.p.bounds.first_key(task[0], 0)
        return first + (task[3] * self.split_blocks(task[0]) + kb) * self.tiles.key_block + j

    def split_blocks(self, b: Any) -> Any:
        """Key blocks of each split of a batch element."""
        bounds = self.p.bounds
        keys = bounds.end_key(b, self.p["query_length"] - 1) - bounds.first_key(b, 0)
        return ceil_div(tirx.max(keys, 0), self.tiles.key_block * self.p["splits"])

    def end_key(self, task: tuple[Any, ...]) -> Any:
        """No key from this one on is of this task."""
        return self.p.bounds.keys(task[0])

    def column(self, c0: Any, c: Any) -> Any:
        """Value column ``c`` of those that threads ``c0`` own."""
        t = self.tiles
        strip, place = tirx.floordiv(c, t.adjacent), tirx.floormod(c, t.adjacent)
        return (strip * t.column_threads + c0) * t.adjacent + place
