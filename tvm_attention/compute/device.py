"""How a GPU's blocks and threads divide the rows, keys and columns of attention: index arithmetic.

A block of ``row_threads`` x ``column_threads`` threads computes a block of query rows against one block of
keys after another. Thread (i0, j0) owns ``rows`` rows, ``keys`` keys of every block and ``columns`` value
columns; its rows are those of its scores and of its values alike, so that what is known of a row (its
maximum, its sum) stays in its registers. Rows and keys are dealt out in turn, so that neighbouring threads
read neighbouring rows of shared memory; on tensor cores as their instructions deal out a product.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tvm import te, tirx

from tvm_attention.compute.bounds import Bounds
from tvm_attention.compute.problem import Problem, ceil_div

KV_HEAD = "kv_head"  # of a block of threads, where it has one query head
LANES = 8  # rows and columns of the smallest matrix that tensor cores load


@dataclass(frozen=True)
class DeviceTiles:
    """Sizes that shape the expression: threads along rows and along keys and columns, and what each owns.
    ``adjacent``: columns of a thread that lie side by side in memory; it divides ``columns``. ``split``:
    whether the keys are split over blocks, for the query heads of a group at once, and merged after.
    ``tensor``: whether tensor cores multiply 16-bit numbers: four threads share eight columns of eight rows.
    ``overlap``: whether keys and values are copied while threads compute (tvm_attention.lowering.key_loop).
    """

    row_threads: int
    column_threads: int
    rows: int
    keys: int
    columns: int
    adjacent: int
    split: bool = False
    tensor: bool = False
    overlap: bool = False

    @property
    def query_block(self) -> int:
        return self.row_threads * self.rows

    @property
    def key_block(self) -> int:
        return self.column_threads * self.keys


class Tasks:
    """What a block of threads works on: (batch, query head, block of queries), or, where keys are split,
    (batch, key-value head, split), with the queries of all heads of the group as its rows."""

    def __init__(self, p: Problem, tiles: DeviceTiles) -> None:
        self.p, self.tiles = p, tiles
        if tiles.split:
            kv_heads = tirx.truncdiv(p["query_heads"], p["group"])
            self.outer = (p["batch"], kv_heads, p["splits"])
            self.key_blocks = _parts(p["key_length"], tiles.key_block * p["splits"])
        else:
            if p.fixed is None:
                # Divided once, by lowering: not with every copy of a key or value.
                p.scalars[KV_HEAD] = te.var(KV_HEAD, "int32")
            self.outer = (*p.outer, ceil_div(p["query_length"], tiles.query_block))
            self.key_blocks = ceil_div(p["key_length"], tiles.key_block)

    def kv_head(self, h: Any) -> Any:
        if self.tiles.split:
            return h
        p = self.p
        return p[KV_HEAD] if p.fixed is None else tirx.truncdiv(h, p["group"])

    def query(self, task: tuple[Any, ...], row: Any) -> tuple[Any, Any]:
        """Query head and query of a row; where rows are those of a group, the last one repeated."""
        if not self.tiles.split:
            return task[1], task[2] * self.tiles.query_block + row
        length, group = self.p["query_length"], self.p["group"]
        r = tirx.min(row, group * length - 1)
        return task[1] * group + tirx.truncdiv(r, length), tirx.truncmod(r, length)

    def key(self, task: tuple[Any, ...], kb: Any, j: Any) -> Any:
        """Key ``j`` of a block of keys."""
        if not self.tiles.split:
            return kb * self.tiles.key_block + j
        bounds, size = self.p.bounds, self.tiles.key_block
        blocks = split_blocks(bounds, self.p.scalars, size, task[0])
        return bounds.first_key(task[0], 0) + (task[2] * blocks + kb) * size + j


def row_of(tiles: DeviceTiles, i0: Any, i1: Any) -> Any:
    """Row ``i1`` of those that threads ``i0`` own."""
    if not tiles.tensor:
        return i1 * tiles.row_threads + i0
    return tirx.floordiv(i0, LANES) * (LANES * tiles.rows) + i1 * LANES + tirx.floormod(i0, LANES)


def key_of(tiles: DeviceTiles, j0: Any, j1: Any) -> Any:
    """Key ``j1`` of those that threads ``j0`` own of a block."""
    if not tiles.tensor:
        return j1 * tiles.column_threads + j0
    return tirx.floordiv(j1, 2) * LANES + j0 * 2 + tirx.floormod(j1, 2)


def column_of(tiles: DeviceTiles, c0: Any, c: Any) -> Any:
    """Value column ``c`` of those that threads ``c0`` own."""
    strip, place = tirx.floordiv(c, tiles.adjacent), tirx.floormod(c, tiles.adjacent)
    return (strip * tiles.column_threads + c0) * tiles.adjacent + place


def split_blocks(bounds: Bounds, symbols: Mapping[str, Any], key_block: int, b: Any) -> Any:
    """Blocks of keys of each split of a batch element."""
    keys = bounds.end_key(b, symbols["query_length"] - 1) - bounds.first_key(b, 0)
    return _parts(tirx.max(keys, 0), key_block * symbols["splits"])


def _parts(whole: Any, part: Any) -> Any:
    """Parts of which the last may be short. Of what is not negative: rounding down would take tests."""
    return tirx.truncdiv(whole + part - 1, part)
