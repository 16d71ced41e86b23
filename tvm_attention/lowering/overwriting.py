"""Stages that overwrite what they are computed from: the scores of a decoding task, and their weights.

An expression gives each stage a tensor. Three of a split's size would not stay in the first cache together,
where one does.
"""

from __future__ import annotations

from typing import Any

from tvm import tirx

from tvm_attention.lowering.statements import inside, load_of, rebuilt, sequence, statements

_KEPT, _STAGES = (
    "SM",
    ("S", "P"),
)  # each element of a stage needs but the same one of that before it


def overwrite(stmt: Any) -> Any:
    """The statement of a decoding kernel with one buffer for its scores and weights."""
    return _Overwriting(_buffer_of(_KEPT, stmt)).rewrite(stmt)


class _Overwriting:
    def __init__(self, kept: Any) -> None:
        self._kept = kept

    def rewrite(self, stmt: Any) -> Any:
        if isinstance(stmt, tirx.SeqStmt):
            left = [s for s in stmt.seq if not _allocates(s)]
            return sequence([x for s in left for x in statements(self.rewrite(s))])
        if not isinstance(stmt, tirx.BufferStore):
            return inside(stmt, self.rewrite)
        value = stmt.value
        if any(load_of(name, value) is not None for name in _STAGES):
            value = rebuilt(value, self._load)
        buffer = self._kept if stmt.buffer.name in _STAGES else stmt.buffer
        return tirx.BufferStore(buffer, value, stmt.indices)

    def _load(self, e: Any) -> Any:
        if hasattr(e, "source") and e.source.name in _STAGES:
            return tirx.BufferLoad(self._kept, e.indices)
        return None


def _allocates(stmt: Any) -> bool:
    return isinstance(stmt, tirx.AllocBuffer) and stmt.buffer.name in _STAGES


def _buffer_of(name: str, stmt: Any) -> Any:
    """The buffer of this name that is allocated within a statement, or None."""
    if isinstance(stmt, tirx.AllocBuffer):
        return stmt.buffer if stmt.buffer.name == name else None
    if isinstance(stmt, tirx.For):
        return _buffer_of(name, stmt.body)
    found = (_buffer_of(name, s) for s in stmt.seq) if isinstance(stmt, tirx.SeqStmt) else ()
    return next((b for b in found if b is not None), None)
