"""Which rows and keys the parts of split-KV decoding compute."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tvm import tirx

from tvm_attention.compute.problem import Problem, ceil_div


@dataclass(frozen=True)
class SplitKVTiles:
    """rows: query rows folded onto a key-value head (at least group x query length); lanes: keys of a
    score vector; score_lanes and value_lanes: lanes that divide the head and value dimension; streams:
    places of a split that are read at the same time; integer: 1 or 2 where int8
    keys are multiplied as integers: by themselves, or in pairs; words: whether by digits of 16 bits, not of
    8; halves: 1 or 2 where float16 queries, keys, weights and values are multiplied as they are stored (the
    products of two are exact in float32): how many vectors of sums the products of a vector of keys go to."""

    rows: int
    lanes: int
    score_lanes: int
    value_lanes: int
    streams: int
    integer: int = 0
    words: bool = False
    halves: int = 0

    @property
    def shuffled(self) -> bool:
        """Whether lanes are added by shuffles: those of four are as fast one vector at a time."""
        return self.lanes >= 8


class Places:
    """Which query row and which key an index of the expression means."""

    def __init__(self, p: Problem, tiles: SplitKVTiles) -> None:
        self.p, self.lanes, self.streams = p, tiles.lanes, tiles.streams

    def query(self, row: Any) -> tuple[Any, Any]:
        """Head within the group and query row; the last one beyond the end."""
        length = self.p["query_length"]
        r = tirx.min(row, self.p["group"] * length - 1)
        return tirx.truncdiv(r, length), tirx.truncmod(r, length)

    def first_key(self, b: Any) -> Any:
        return self.p.bounds.first_key(b, 0)

    def end_key(self, b: Any) -> Any:
        return self.p.bounds.end_key(b, self.p["query_length"] - 1)

    def vectors(self, b: Any) -> Any:
        """Key vectors of a split."""
        keys = self.end_key(b) - self.first_key(b)
        return ceil_div(ceil_div(keys, self.lanes), self.p["splits"])

    def key(self, b: Any, sp: Any, jo: Any, ji: Any) -> Any:
        """Neighbouring lanes take keys from different runs of the split: memory answers several
        sequential reads faster than one. The order of keys within a split does not matter."""
        n, chunk, vectors = self.streams, self.lanes // self.streams, self.vectors(b)
        run, stream, step = vectors * chunk, tirx.floormod(ji, n), tirx.floordiv(ji, n)
        split = self.first_key(b) + sp * vectors * self.lanes
        return split + stream * run + jo * chunk + step

    def in_range(self, b: Any, sp: Any, jo: Any, ji: Any) -> Any:
        return self.key(b, sp, jo, ji) < self.end_key(b)
