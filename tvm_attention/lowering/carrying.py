"""What goes from one key block to the next (tvm_attention.compute.running).

A call of ``block_before(first)`` or ``block_before(first, current)`` becomes a load from a row of state
that is ``first`` in the first block; the store whose value holds the latter also sets the state to
``current``. ``r + scaled_sum(x, a)`` becomes ``r * a + x``, in the first block x: sums need not be cleared
before it, nor read.
"""

from __future__ import annotations

from typing import Any

import tvm
from tvm import tirx

from tvm_attention.lowering.statements import sequence, statements, with_body

FIRST_BLOCK = "first_block"  # a condition that narrowing knows
CLEARED = "unless_key_blocks"  # annotation of the loop that clears sums


def carry(stmt: Any, first_apart: bool = True) -> Any:
    """The statement with state kept outside the loop over key blocks (annotated ``key_block``). Without
    ``first_apart`` sums are cleared first, and every block is alike."""
    if isinstance(stmt, tirx.SeqStmt):
        return tirx.SeqStmt([x for s in stmt.seq for x in statements(carry(s, first_apart))])
    if not isinstance(stmt, tirx.For):
        return stmt
    if "key_block" not in stmt.annotations:
        loop = with_body(stmt, carry(stmt.body, first_apart))
        if first_apart or CLEARED not in stmt.annotations:
            return loop
        notes = {k: v for k, v in loop.annotations.items() if k != CLEARED}
        return tirx.For(loop.loop_var, loop.min, loop.extent, loop.kind, loop.body, None, notes)
    carrying = _Carrying(first_apart)
    loop = with_body(stmt, carrying.rewrite(stmt.body))
    return loop if carrying.state is None else tirx.SeqStmt([*carrying.start(), loop])


class _Carrying:
    def __init__(self, first_apart: bool) -> None:
        self._first_apart = first_apart
        self.state: Any = None
        self._first: Any = None

    def start(self) -> list[Any]:
        """Statements that make the state and fill it."""
        strips, rows = self.state.shape
        strip, row = tirx.Var("strip", "int32"), tirx.Var("row", "int32")
        store = tirx.BufferStore(self.state, self._first, [strip, row])
        inner = tirx.For(row, 0, rows, tirx.ForKind.SERIAL, store)
        outer = tirx.For(strip, 0, strips, tirx.ForKind.SERIAL, inner, None, self._strip_notes)
        return [tirx.AllocBuffer(self.state), outer]

    def rewrite(self, stmt: Any) -> Any:
        if isinstance(stmt, tirx.SeqStmt):
            return tirx.SeqStmt([self.rewrite(s) for s in stmt.seq])
        if isinstance(stmt, tirx.For):
            if "query_strip" in stmt.annotations:
                self.strip, self.strips = stmt.loop_var, stmt.extent
                self._strip_notes = {"query_strip": stmt.annotations["query_strip"]}
            if _is_sum(stmt):
                if not self._first_apart:
                    return _summed(stmt, True)
                first = tirx.call_extern("bool", FIRST_BLOCK)
                return tirx.IfThenElse(first, _summed(stmt, False), _summed(stmt, True))
            return with_body(stmt, self.rewrite(stmt.body))
        if not isinstance(stmt, tirx.BufferStore):
            return stmt
        updates: list[Any] = []
        value = self._value(stmt.value, stmt, updates)
        if value is stmt.value:
            return stmt
        return sequence([tirx.BufferStore(stmt.buffer, value, stmt.indices), *updates])

    def _value(self, e: Any, store: Any, updates: list[Any]) -> Any:
        if callee(e) == "block_before":
            return self._before(e, store, updates)
        parts = {tirx.Max: "ab", tirx.Sub: "ab", tirx.Add: "ab", tirx.Mul: "ab"}.get(type(e))
        if parts is not None:
            a, b = self._value(e.a, store, updates), self._value(e.b, store, updates)
            return e if a is e.a and b is e.b else type(e)(a, b)
        return e

    def _before(self, call: Any, store: Any, updates: list[Any]) -> Any:
        place = [self.strip, store.indices[-1]]
        if self.state is None:
            size = (self.strips, store.buffer.shape[-1])
            self.state = tirx.decl_buffer(size, "float32", name="before", layout=None)
        if len(call.args) == 3:
            updates.append(tirx.BufferStore(self.state, call.args[2], place))
        self._first = call.args[1]
        return tirx.BufferLoad(self.state, place)


def _is_sum(stmt: Any) -> bool:
    """Whether a nest is nothing but a scaled sum."""
    while isinstance(stmt, tirx.For):
        stmt = stmt.body
    if not isinstance(stmt, tirx.BufferStore) or not isinstance(stmt.value, tirx.Add):
        return False
    return callee(stmt.value.b) == "scaled_sum"


def _summed(stmt: Any, to_what_was: bool) -> Any:
    if isinstance(stmt, tirx.For):
        return with_body(stmt, _summed(stmt.body, to_what_was))
    addend, factor = stmt.value.b.args[1:]
    value = stmt.value.a * factor + addend if to_what_was else addend
    return tirx.BufferStore(stmt.buffer, value, stmt.indices)


def callee(e: Any) -> str | None:
    if isinstance(e, tvm.ir.Call) and e.op.name == "tirx.call_extern":
        return str(e.args[0].value)
    return None
