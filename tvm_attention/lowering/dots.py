"""Loops over products of int8 numbers become SDOT, which adds four of them to each of four int32 sums, or
SMMLA, which adds eight to each of two by two.

A schedule annotates with ``dot`` the loop over the lanes of a sum; inside it is the loop over the four
numbers of a lane, around one store ``sum[..., x] += int32(a[..., 4 x + y]) * int32(b[..., 4 x + y])``. It
annotates with ``pairs`` the first of the loops over two rows of a, two of b, and eight numbers, around a
store ``sum[..., i, j] += int32(a[..., i, y]) * int32(b[..., y])``, a's rows lying side by side. It
annotates with ``dot_steps`` the loop around a tile of them: LLVM must not load what several steps need
before the first, or it spills the sums.
"""

from __future__ import annotations

from typing import Any

import tvm
from tvm import tirx

from tvm_attention.compute.digit_pairs import DEPTH
from tvm_attention.compute.digits import LANES, RUN
from tvm_attention.lowering.statements import (
    inside,
    loads,
    neighbours,
    sequence,
    statements,
    uses,
    with_body,
)

_INSTRUCTION = "llvm.aarch64.neon.sdot"
_OF_PAIRS = "llvm.aarch64.neon.smmla"
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
        if "pairs" in notes:
            return _pairs(stmt)
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
    places = {lanes.loop_var: 0, run.loop_var: 0}
    total = neighbours(tirx.BufferLoad(store.buffer, store.indices), places, LANES)
    a, b = (
        neighbours(load, places, LANES * RUN)
        for load in loads(store.value)
        if not load.source.same_as(store.buffer)
    )
    value = tirx.call_llvm_pure_intrin(f"int32x{LANES}", _INSTRUCTION, total, a, b)
    return tirx.BufferStore(store.buffer, value, total.indices)


def _pairs(rows: Any) -> Any:
    columns = rows.body
    run = columns.body
    store = run.body
    i, j, y = (loop.loop_var for loop in (rows, columns, run))
    places = dict.fromkeys((i, j, y), 0)
    total = neighbours(tirx.BufferLoad(store.buffer, store.indices), places, 4)
    factors = [x for x in loads(store.value) if not x.source.same_as(store.buffer)]
    [a] = [neighbours(x, places, 2 * DEPTH) for x in factors if uses(x, i)]
    [key] = [x for x in factors if uses(x, j)]
    both = [neighbours(key, {**places, j: n}, DEPTH) for n in (0, 1)]
    b = tirx.Shuffle(both, list(range(2 * DEPTH)))
    value = tirx.call_llvm_pure_intrin("int32x4", _OF_PAIRS, total, a, b)
    return tirx.BufferStore(store.buffer, value, total.indices)
