"""Which rows and keys a batch element has, and which keys a row may see.

Both the expressions and lowering, which shortens loops, ask here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from tvm import tirx

from tvm_attention.arguments import RAGGED_FIELDS
from tvm_attention.workload import AttentionWorkload


class Bounds:
    """``symbols`` holds the kernel's scalars by name; ``ragged`` reads an element of that buffer."""

    def __init__(
        self, w: AttentionWorkload, symbols: Mapping[str, Any], ragged: Callable[[Any], Any]
    ) -> None:
        self._symbols, self._ragged, self._is_ragged = symbols, ragged, w.ragged
        self.causal, self.window = bool(w.causal), w.window is not None
        self._whole = w.output == "weights"  # an element a key, seen or not

    def queries(self, b: Any) -> Any:
        """Query rows of a batch element."""
        return self._field("queries", b) if self._is_ragged else self._symbols["query_length"]

    def keys(self, b: Any) -> Any:
        """Keys of a batch element."""
        return self._field("keys", b) if self._is_ragged else self._symbols["key_length"]

    def query_start(self, b: Any) -> Any:
        """The row of the query tensor at which a batch element begins."""
        return self._field("query_start", b) if self._is_ragged else 0

    def key_start(self, b: Any) -> Any:
        """The row of the key tensor at which a batch element begins."""
        return self._field("key_start", b) if self._is_ragged else 0

    def offset(self, b: Any) -> Any:
        """The key at query 0's own place. For ragged kernels ``causal_offset`` is 1 to count from the
        last key, 0 to count from the first."""
        offset = self._symbols["causal_offset"]
        return offset * (self.keys(b) - self.queries(b)) if self._is_ragged else offset

    def visible(self, b: Any, row: Any, key: Any) -> Any:
        """Whether a row may see a key as far as lengths, causality and window say; None if they leave
        no doubt."""
        own, s = row + self.offset(b), self._symbols
        conditions = []
        if self._whole and self._is_ragged:
            conditions.append(key < self.keys(b))
        if self.window:
            conditions += [key <= own + s["window_right"], key >= own - s["window_left"]]
        elif self.causal:
            conditions.append(key <= own)
        return tirx.all(*conditions) if conditions else None

    def first_key(self, b: Any, row: Any) -> Any:
        """No key before this one is seen by the row or a later one."""
        if self._whole or not self.window:
            return 0
        return tirx.max(row + self.offset(b) - self._symbols["window_left"], 0)

    def end_key(self, b: Any, row: Any) -> Any:
        """No key from this one on is seen by the row or an earlier one."""
        keys = self._symbols["key_length"] if self._whole else self.keys(b)
        if self._whole or not (self.causal or self.window):
            return keys
        end = row + self.offset(b) + 1
        if self.window:
            end = end + self._symbols["window_right"]
        return tirx.min(keys, end)

    def _field(self, name: str, b: Any) -> Any:
        return self._ragged(b * len(RAGGED_FIELDS) + RAGGED_FIELDS.index(name))
