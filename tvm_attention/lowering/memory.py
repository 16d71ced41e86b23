"""Where a kernel's intermediate tensors live: on the stack or in the caller's workspace.

What is left, the tensors of one worker, TVM takes from a pool it keeps for each thread.
"""

from __future__ import annotations

from typing import Any

import tvm
from tvm import tirx

from tvm_attention.lowering.statements import sequence, statements, with_body


def pointer(dtype: Any) -> Any:
    """The type of an address of elements of a dtype."""
    return tvm.ir.PointerType(tvm.ir.PrimType(str(dtype)))


def tiles_on_stack(stmt: Any) -> Any:
    """Put register tiles' accumulators on the stack, from where LLVM takes them into registers.

    TVM would take 1024 bytes and more from the heap, at every tile, and no register would hold them.
    """
    if isinstance(stmt, tirx.SeqStmt):
        rewritten = [tiles_on_stack(s) for s in stmt.seq]
        return tirx.SeqStmt([x for s in rewritten for x in statements(s)])
    if isinstance(stmt, tirx.For):
        return with_body(stmt, tiles_on_stack(stmt.body))
    if isinstance(stmt, tirx.IfThenElse):
        other = None if stmt.else_case is None else tiles_on_stack(stmt.else_case)
        return tirx.IfThenElse(stmt.condition, tiles_on_stack(stmt.then_case), other)
    if isinstance(stmt, tirx.AllocBuffer) and stmt.buffer.scope() == "local":
        return _on_stack(stmt.buffer)
    return stmt


def _on_stack(buffer: Any) -> Any:
    size = _element_bytes(buffer)
    for extent in buffer.shape:
        size *= int(extent)
    kind = pointer(buffer.dtype)
    handle = tirx.Var(f"{buffer.name}_stack", kind)
    memory = tirx.call_intrin("handle", "tirx.tvm_stack_alloca", "shape", -(-size // 8))
    bind = tirx.Bind(handle, tirx.reinterpret(kind, memory))
    return tirx.SeqStmt([bind, tirx.DeclBuffer(buffer, data=handle)])


def _element_bytes(buffer: Any) -> int:
    return tvm.DataType(str(buffer.dtype)).bits // 8


def take_allocations(stmt: Any, taken: list[Any]) -> Any:
    """Remove the allocations that stand outside the workers' loops: of all workers, when a kernel is given,
    of the one that a task is given of."""
    if isinstance(stmt, tirx.SeqStmt):
        kept = []
        for s in stmt.seq:
            if isinstance(s, tirx.AllocBuffer) and s.buffer.scope() == "global":
                taken.append(s)
            else:
                kept.append(take_allocations(s, taken))
        return sequence(kept)
    if isinstance(stmt, tirx.For) and int(stmt.kind) != int(tirx.ForKind.PARALLEL):
        return with_body(stmt, take_allocations(stmt.body, taken))
    return stmt


def place_in_workspace(allocations: list[Any], workspace: Any) -> tuple[list[Any], Any]:
    """Put the buffers that all workers share into the caller's workspace: a call allocates nothing."""
    stmts: list[Any] = []
    size: Any = tirx.const(0, "int64")
    for allocation in allocations:
        buffer = allocation.buffer
        count: Any = tirx.const(_element_bytes(buffer), "int64")
        for extent in buffer.shape:
            count = count * tirx.Cast("int64", extent)
        kind = pointer(buffer.dtype)
        handle = tirx.Var(f"{buffer.name}_data", kind)
        stmts.append(tirx.Bind(handle, tirx.reinterpret(kind, workspace + size)))
        stmts.append(tirx.DeclBuffer(buffer, data=handle))
        size = size + tirx.floordiv(count + 63, 64) * 64
    return stmts, size
