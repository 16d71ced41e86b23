"""Prefetches: keys and values are asked for some steps before they are used.

A loop marked ``prefetch`` reads memory once and in order. The processor's own prefetchers follow such reads,
but stand still whenever the loop computes instead of reading; a prefetch of what is read ``prefetch``
iterations later keeps memory busy meanwhile. Of neighbours that are read in several steps, those that begin a
cache line are asked for. Beyond the last iteration it asks for what is read elsewhere, or for nothing: a
prefetch cannot fault.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tvm import tirx
from tvm.sym import Analyzer
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
_LINE = 64  # bytes
_READ, _EVERY_LEVEL, _DATA = 0, 3, 1  # operands of LLVM's prefetch


def with_prefetches(stmt: Any) -> Any:
    """The statement with the marked loops' reads of keys and values asked for ahead."""
    if not isinstance(stmt, tirx.For) or "prefetch" not in stmt.annotations:
        return inside(stmt, with_prefetches)
    notes = dict(stmt.annotations)
    reads = _Reads({stmt.loop_var: stmt.loop_var + int(notes.pop("prefetch"))})
    body = reads.asked(*reads.of(stmt.body, ()), ())
    return tirx.For(
        stmt.loop_var, stmt.min, stmt.extent, stmt.kind, body, stmt.thread_binding, notes
    )


class _Reads:
    """The reads of a loop, ``ahead``: what its variable is replaced by. ``around`` are the variables of the
    loops within it that are around a statement."""

    def __init__(self, ahead: Mapping[Any, Any]) -> None:
        self._ahead = ahead

    def of(self, stmt: Any, around: tuple[Any, ...]) -> tuple[Any, list[Any]]:
        """The statement, and the reads in it that are the same in every iteration of its loops: their
        prefetches belong before it, those of the others are in it already."""
        if isinstance(stmt, tirx.SeqStmt):
            seen: list[Any] = []
            return tirx.SeqStmt([self._first_asked(s, around, seen) for s in stmt.seq]), []
        if isinstance(stmt, tirx.BufferStore):
            reads = [_first(load) for load in loads(stmt.value) if load.source.name in _MEMORY]
            return stmt, reads
        if isinstance(stmt, tirx.IfThenElse) and stmt.else_case is None:
            then, reads = self.of(stmt.then_case, around)
            return tirx.IfThenElse(stmt.condition, self.asked(then, reads, around), None), []
        return self._of_loop(stmt, around) if isinstance(stmt, tirx.For) else (stmt, [])

    def _of_loop(self, loop: Any, around: tuple[Any, ...]) -> tuple[Any, list[Any]]:
        variable, kind = loop.loop_var, int(loop.kind)
        serial = kind not in (int(tirx.ForKind.VECTORIZED), int(tirx.ForKind.UNROLLED))
        within = (*around, variable) if serial else around
        body, reads = self.of(loop.body, within)
        used: list[Any] = []
        before: list[Any] = []
        for load in reads:
            (used if any(uses(i, variable) for i in load.indices) else before).append(load)
        if serial:
            return with_body(loop, self.asked(body, used, within)), before
        vectorised = kind == int(tirx.ForKind.VECTORIZED)
        places = [
            _at(load, _place(variable, n))
            for n in range(1 if vectorised else int(loop.extent))
            for load in used
            if n % _steps_of_a_line(load, variable) == 0
        ]
        return with_body(loop, body), before + places

    def _first_asked(self, stmt: Any, around: tuple[Any, ...], seen: list[Any]) -> Any:
        """The statement after the prefetches of its reads, but for those ``seen`` in statements before it."""
        stmt, reads = self.of(stmt, around)
        new = [r for r in reads if not any(structural_equal(r, s) for s in seen)]
        seen += new
        return self.asked(stmt, new, around)

    def asked(self, stmt: Any, reads: list[Any], around: tuple[Any, ...]) -> Any:
        """The statement after the prefetches of reads, as they are ahead, in the first of the steps of the
        loops around it that read the same line."""
        asked = []
        for load in reads:
            address = tirx.address_of(_at(load, self._ahead))
            call = tirx.call_llvm_intrin(
                "void", "llvm.prefetch", address, _READ, _EVERY_LEVEL, _DATA
            )
            prefetch = tirx.Evaluate(call)
            for variable in around:
                if (steps := _steps_of_a_line(load, variable)) > 1:
                    first = tirx.floormod(variable, steps).equal(0)
                    prefetch = tirx.IfThenElse(first, prefetch, None)
            asked.append(prefetch)
        return sequence([*asked, *statements(stmt)])


def _steps_of_a_line(load: Any, variable: Any) -> int:
    """Steps of a variable that read one cache line; one where what they read is further apart."""
    *_, last = load.indices
    first, second = (substituted(tirx.Evaluate(last), _place(variable, n)).value for n in range(2))
    step = Analyzer().simplify(second - first)
    size = int(step) * load.ty.dtype.itemsize if isinstance(step, tirx.IntImm) else _LINE
    return _LINE // size if 0 < size < _LINE and _LINE % size == 0 else 1


def _place(variable: Any, value: int) -> Mapping[Any, Any]:
    return {variable: tirx.const(value, str(variable.ty))}


def _first(load: Any) -> Any:
    """The load of the first of the neighbours that it loads."""
    *outer, last = load.indices
    return tirx.BufferLoad(load.source, [*outer, getattr(last, "base", last)])


def _at(load: Any, places: Mapping[Any, Any]) -> Any:
    """The load with variables of its indices replaced."""
    value = substituted(tirx.Evaluate(load), places).value
    return tirx.BufferLoad(value.source, value.indices)
