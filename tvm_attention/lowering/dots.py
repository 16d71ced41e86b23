"""Loops over products of int8 numbers become SDOT, which adds four of them to each of four int32 sums.

A schedule annotates with ``dot`` the loop over the lanes of a sum; inside it is the loop over the four
numbers of a lane, around one store ``sum[..., x] += int32(a[..., 4 x + y]) * int32(b[..., 4 x + y])``. It
annotates with ``dot_steps`` the loop around a tile of them: LLVM must not load what several steps need
before the first, or it spills the sums.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import tvm
from tvm import tirx
from tvm.sym import Analyzer

from tvm_attention.compute.digits import LANES, RUN
from tvm_attention.lowering.statements import (
    inside,
    loads,
    sequence,
    statements,
    substituted,
    with_body,
)

_INSTRUCTION = "llvm.aarch64.neon.sdot"
_STEP = "tvm_attention_dot_step"
_IR = f"""
define i32 @{_STEP}() alwaysinline {{
  call void asm sideeffect "", "~{{memory}}"()
  ret i32 0
}}
"""


class Dots:
    """Rewrites the annotated loops of one kernel."""

    def __init__(self) -> None:
        self._used = False

    def rewrite(self, stmt: Any) -> Any:
        """The statement with its annotated loops replaced."""
        notes = stmt.annotations if isinstance(stmt, tirx.For) else {}
        if "dot" in notes:
            return _dot(stmt)
        stmt = inside(stmt, self.rewrite)
        if "dot_steps" not in notes:
            return stmt
        self._used = True
        begin = tirx.Evaluate(tirx.call_extern("int32", _STEP))
        return with_body(stmt, sequence([begin, *statements(stmt.body)]))

    def linked(self, stmt: Any) -> Any:
        """The statement with the function it calls linked into its module."""
        if not self._used:
            return stmt
        code = tvm.ir.StringImm(_IR)
        return tirx.AttrStmt(tvm.ir.StringImm("import"), "pragma_import_llvm", code, stmt)


def _dot(lanes: Any) -> Any:
    run = lanes.body
    store = run.body
    places = {lanes.loop_var: _zero(lanes.loop_var), run.loop_var: _zero(run.loop_var)}
    total = _run_of(tirx.BufferLoad(store.buffer, store.indices), places, LANES)
    a, b = (
        _run_of(load, places, LANES * RUN)
        for load in loads(store.value)
        if not load.source.same_as(store.buffer)
    )
    value = tirx.call_llvm_pure_intrin(f"int32x{LANES}", _INSTRUCTION, total, a, b)
    return tirx.BufferStore(store.buffer, value, total.indices)


def _run_of(load: Any, places: Mapping[Any, Any], count: int) -> Any:
    """The load of so many neighbours, from the first turn's on."""
    first = substituted(tirx.Evaluate(load), places).value
    *outer, last = (Analyzer().simplify(i) for i in first.indices)
    step = tirx.const(1, str(last.ty))
    return tirx.BufferLoad(first.source, [*outer, tirx.Ramp(last, step, count)])


def _zero(variable: Any) -> Any:
    return tirx.const(0, str(variable.ty))
