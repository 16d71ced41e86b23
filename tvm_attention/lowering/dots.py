"""Loops over products of integers become SDOT, which adds four of int8 to each of four int32 sums; SMMLA,
which adds eight to each of two by two; or VPMADDWD, which adds two of int16.

A schedule annotates with ``dot`` the loop over the lanes of a sum; inside it is the loop over the ``n``
numbers of a lane, around one store ``sum[..., x] += int32(a[..., n x + y]) * int32(b[..., n x + y])``. It
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
from tvm_attention.lowering.statements import (
    inside,
    loads,
    neighbours,
    sequence,
    statements,
    uses,
    with_body,
)

_OF_BYTES = "llvm.aarch64.neon.sdot"
# LLVM makes of one, and of adding its result, VPDPWSSD where a processor has that.
_OF_WORDS = {
    4: "llvm.x86.sse2.pmadd.wd",
    8: "llvm.x86.avx2.pmadd.wd",
    16: "llvm.x86.avx512.pmaddw.d.512",
}
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
    count, numbers = int(lanes.extent), int(run.extent)
    places = {lanes.loop_var: 0, run.loop_var: 0}
    total = neighbours(tirx.BufferLoad(store.buffer, store.indices), places, count)
    factors = [
        neighbours(load, places, count * numbers)
        for load in loads(store.value)
        if not load.source.same_as(store.buffer)
    ]
    dtype = f"int32x{count}"
    if numbers == 2:
        words = (tirx.Cast(f"int16x{2 * count}", x) for x in factors)
        value = total + tirx.call_llvm_pure_intrin(dtype, _OF_WORDS[count], *words)
    else:
        value = tirx.call_llvm_pure_intrin(dtype, _OF_BYTES, total, *factors)
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
