"""Which pages belong to which sequence."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tvm_attention.errors import InvalidValueError


class PagePool:
    """Pages 0 to ``pages`` - 1, free or a sequence's. A sequence is a number that is never used again."""

    def __init__(self, pages: int, page_size: int) -> None:
        self.page_size = page_size
        self._free = list(range(pages - 1, -1, -1))  # the lowest number is taken first
        self._pages: dict[int, list[int]] = {}
        self._lengths: dict[int, int] = {}
        self._next = 0

    @property
    def free_pages(self) -> int:
        return len(self._free)

    @property
    def sequences(self) -> tuple[int, ...]:
        return tuple(self._pages)

    def allocate(self) -> int:
        """A new sequence, without pages."""
        sequence = self._next
        self._next += 1
        self._pages[sequence], self._lengths[sequence] = [], 0
        return sequence

    def free(self, sequence: int) -> None:
        """Take back a sequence and its pages. Raises InvalidValueError for one that there is not."""
        self.check([sequence])
        self._free += reversed(self._pages.pop(sequence))
        del self._lengths[sequence]

    def check(self, sequences: Iterable[Any]) -> None:
        """Raise InvalidValueError unless all are sequences that have not been freed."""
        for sequence in sequences:
            if sequence not in self._pages:
                raise InvalidValueError(
                    f"sequences: expected some of those allocated and not freed, got {sequence!r}"
                )

    def length(self, sequence: int) -> int:
        return self._lengths[sequence]

    def pages(self, sequence: int) -> list[int]:
        return self._pages[sequence]

    def grow(self, sequences: Sequence[int], counts: Sequence[int]) -> None:
        """Make sequences longer, with pages for it. Raises InvalidValueError, and changes nothing, where
        there are too few."""
        lengths = [self._lengths[s] + n for s, n in zip(sequences, counts, strict=True)]
        missing = [
            -(-length // self.page_size) - len(self._pages[s])
            for s, length in zip(sequences, lengths, strict=True)
        ]
        if sum(missing) > len(self._free):
            raise InvalidValueError(
                f"pages: expected at most the {len(self._free)} that are free to be needed, got "
                f"{sum(missing)}; nothing was stored; free sequences or make a larger cache"
            )
        for sequence, length, pages in zip(sequences, lengths, missing, strict=True):
            self._pages[sequence] += [self._free.pop() for _ in range(pages)]
            self._lengths[sequence] = length

    def table(self, sequences: Sequence[int]) -> NDArray[np.int64]:
        """Pages of sequences, (sequences, the most pages of one), 0 beyond their ends."""
        width = max((len(self._pages[s]) for s in sequences), default=0)
        table = np.zeros((len(sequences), width), np.int64)
        for row, sequence in zip(table, sequences, strict=True):
            row[: len(self._pages[sequence])] = self._pages[sequence]
        return table
