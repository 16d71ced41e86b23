"""Prefetches: keys and values are asked for some steps before they are used.

A loop marked ``prefetch`` reads memory once and in order. The processor's own prefetchers follow such reads,
but stand still whenever the loop computes instead of reading; a prefetch of what is read ``prefetch``
iterations later keeps memory busy meanwhile. Beyond the last iteration it asks for what is read elsewhere,
or for nothing: a prefetch cannot fault.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tvm import tirx
from tvm_ffi import structural_equal

from tvm_attention.lowering.statements import (
    inside,
    loads,
    sequence,
    statements,
    substituted,
    uses,
    with_body,
)

_MEMORY = ("key", "value")
_READ, _EVERY_LEVEL, _DATA = 0, 3, 1  # operands of LLVM's prefetch


def with_prefetches(stmt: Any) -> Any:
    """The statement with the marked loops' reads of keys and values asked for ahead."""
    if not isinstance(stmt, tirx.For) or "prefetch" not in stmt.annotations:
        return inside(stmt, with_prefetches)
    notes = dict(stmt.annotations)
    ahead = {stmt.loop_var: stmt.loop_var + int(notes.pop("prefetch"))}
    body = _asked(*_reads(stmt.body, ahead), ahead)
    return tirx.For(
        stmt.loop_var, stmt.min, stmt.extent, stmt.kind, body, stmt.thread_binding, notes
    )


def _reads(stmt: Any, ahead: Mapping[Any, Any]) -> tuple[Any, list[Any]]:
    """The statement, and the reads in it that are the same in every iteration of its loops: their prefetches
    belong before it, those of the others are in it already."""
    if isinstance(stmt, tirx.SeqStmt):
        seen: list[Any] = []
        return tirx.SeqStmt([_first_asked(s, ahead, seen) for s in stmt.seq]), []
    if isinstance(stmt, tirx.BufferStore):
        return stmt, [load for load in loads(stmt.value) if load.source.name in _MEMORY]
    if isinstance(stmt, tirx.IfThenElse) and stmt.else_case is None:
        then, reads = _reads(stmt.then_case, ahead)
        return tirx.IfThenElse(stmt.condition, _asked(then, reads, ahead), None), []
    if not isinstance(stmt, tirx.For):
        return stmt, []
    body, reads = _reads(stmt.body, ahead)
    variable = stmt.loop_var
    used: list[Any] = []
    before: list[Any] = []
    for load in reads:
        (used if any(uses(i, variable) for i in load.indices) else before).append(load)
    if int(stmt.kind) == int(tirx.ForKind.VECTORIZED):
        return with_body(stmt, body), before + [_at(load, _place(variable, 0)) for load in used]
    if int(stmt.kind) == int(tirx.ForKind.UNROLLED):
        places = [_place(variable, n) for n in range(int(stmt.extent))]
        return with_body(stmt, body), before + [_at(load, p) for p in places for load in used]
    return with_body(stmt, _asked(body, used, ahead)), before


def _place(variable: Any, value: int) -> Mapping[Any, Any]:
    return {variable: tirx.const(value, str(variable.ty))}


def _first_asked(stmt: Any, ahead: Mapping[Any, Any], seen: list[Any]) -> Any:
    """The statement after the prefetches of its reads, but for those ``seen`` in statements before it."""
    stmt, reads = _reads(stmt, ahead)
    new = [r for r in reads if not any(structural_equal(r, s) for s in seen)]
    seen += new
    return _asked(stmt, new, ahead)


def _asked(stmt: Any, reads: list[Any], ahead: Mapping[Any, Any]) -> Any:
    """The statement after the prefetches of reads, as they are ``ahead``."""
    if not reads:
        return stmt
    asked = []
    for load in reads:
        address = tirx.address_of(_at(load, ahead))
        asked.append(
            tirx.Evaluate(
                tirx.call_llvm_intrin("void", "llvm.prefetch", address, _READ, _EVERY_LEVEL, _DATA)
            )
        )
    return sequence([*asked, *statements(stmt)])


def _at(load: Any, places: Mapping[Any, Any]) -> Any:
    """The load with variables of its indices replaced."""
    value = substituted(tirx.Evaluate(load), places).value
    return tirx.BufferLoad(value.source, value.indices)
