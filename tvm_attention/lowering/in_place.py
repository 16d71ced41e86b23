"""Sums completed where they are: stage RX, R + EX, is R itself, and EX is added to it.

An expression cannot say so. Lowered as it is, every task would clear EX and copy R, though hardly any has
NaN or Inf among its values, which are all that EX holds (tvm_attention.compute.online).
"""

from __future__ import annotations

from typing import Any

from tvm import tirx

from tvm_attention.lowering.statements import load_of, rebuilt, sequence, with_body

_TERMS, _TOTAL = "EX", "RX"


def in_place(stmt: Any) -> Any:
    """The statement without the two stages' buffers."""
    total = _store_of(_TOTAL, stmt)
    return stmt if total is None else sequence(_InPlace(total.value.a.source).rewrite(stmt))


class _InPlace:
    def __init__(self, sums: Any) -> None:
        self._sums = sums

    def rewrite(self, stmt: Any) -> list[Any]:
        """What stands for a statement: it or nothing."""
        if isinstance(stmt, tirx.SeqStmt):
            parts = [new for s in stmt.seq for new in self.rewrite(s)]
            return [sequence(parts)] if parts else []
        if isinstance(stmt, tirx.For):
            return [with_body(stmt, body) for body in self.rewrite(stmt.body)]
        if isinstance(stmt, tirx.IfThenElse) and stmt.else_case is None:
            return [tirx.IfThenElse(stmt.condition, s, None) for s in self.rewrite(stmt.then_case)]
        if isinstance(stmt, tirx.AllocBuffer):
            return [] if stmt.buffer.name in (_TERMS, _TOTAL) else [stmt]
        return self._stored(stmt) if isinstance(stmt, tirx.BufferStore) else [stmt]

    def _stored(self, store: Any) -> list[Any]:
        if store.buffer.name == _TOTAL:
            return []
        if store.buffer.name == _TERMS:
            if not isinstance(store.value, tirx.Add):  # cleared
                return []
            sums = tirx.BufferLoad(self._sums, store.indices)
            return [tirx.BufferStore(self._sums, sums + store.value.b, store.indices)]
        if load_of(_TOTAL, store.value) is None:
            return [store]
        value = rebuilt(store.value, self._load)
        return [tirx.BufferStore(store.buffer, value, store.indices)]

    def _load(self, e: Any) -> Any:
        if hasattr(e, "source") and e.source.name == _TOTAL:
            return tirx.BufferLoad(self._sums, e.indices)
        return None


def _store_of(name: str, stmt: Any) -> Any:
    """The store of the buffer of this name within a statement, or None."""
    if isinstance(stmt, tirx.BufferStore):
        return stmt if stmt.buffer.name == name else None
    if isinstance(stmt, tirx.SeqStmt):
        return next((x for s in stmt.seq if (x := _store_of(name, s)) is not None), None)
    if isinstance(stmt, tirx.IfThenElse):
        return _store_of(name, stmt.then_case)
    return _store_of(name, stmt.body) if isinstance(stmt, tirx.For) else None
