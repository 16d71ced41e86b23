"""What is valid at a place in a loop nest."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tvm import tirx

from tvm_attention.compute.problem import ceil_div


@dataclass(frozen=True)
class Span:
    """Numbers from ``first`` to before ``end``; ``first`` is None where it is known to be zero."""

    first: Any
    end: Any

    @property
    def count(self) -> Any:
        """How many they are."""
        return self.end if self.first is None else tirx.max(self.end - self.first, 0)

    def units(self, size: int) -> Span:
        """The units of ``size`` that hold them."""
        if size == 1:
            return self
        first = None if self.first is None else tirx.floordiv(self.first, size)
        return Span(first, ceil_div(self.end, size))

    def within(self, start: Any, size: int) -> Span:
        """Those of the ``size`` numbers from ``start`` on, counted from there."""
        first = None if self.first is None else tirx.max(self.first - start, 0)
        return Span(first, tirx.min(size, self.end - start))


@dataclass(frozen=True)
class SplitKeys:
    """The keys of a split: vectors of them whose lanes take ``chunk`` neighbours each from ``lanes // chunk``
    runs (tvm_attention.compute.splits)."""

    start: Any
    end: Any  # of all splits
    vectors: Any
    lanes: int
    chunk: int

    @property
    def whole(self) -> Any:
        """How many vectors have a key in every lane, if there were as many."""
        others = self.vectors * (self.lanes - self.chunk)
        return tirx.floordiv(self.end - self.start - others, self.chunk)

    def has(self, vector: Any, lane: Any) -> Any:
        """Whether a lane of a vector has a key."""
        streams = self.lanes // self.chunk
        run = self.vectors * self.chunk
        stream, step = tirx.floormod(lane, streams), tirx.floordiv(lane, streams)
        return self.start + stream * run + vector * self.chunk + step < self.end


@dataclass(frozen=True)
class Scope:
    """What is valid at a place in the loop nest, None where nothing is said."""

    batch: Any = None
    keys: Span | None = None
    rows: Span | None = None
    block_keys: Span | None = None
    split_vectors: Span | None = None
    split_keys: SplitKeys | None = None
    split_vector: Any = None  # the current one
    split_lane: Any = None  # the first of the current ones
    split_whole: bool = False  # whether all lanes of the current vector have keys
    first_row: Any = None
    key_block: tuple[Any, int] | None = None  # first key and size of the current block
    first_block: Any = None  # whether it is the task's first
    last_tile: Any = None
    rows_left: Any = None  # from the current register tile on
    keys_left: Any = None
