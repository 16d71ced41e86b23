"""Where a kernel's intermediate tensors live: on the stack or in the caller's workspace.

What is left, the tensors of one worker, TVM takes from a pool it keeps for each thread; where there is
no TVM at run time, they too go to the workspace.
"""

from __future__ import annotations

import math
from typing import Any

import tvm
from tvm import tirx

from tvm_attention.lowering.statements import inside, sequence, with_body


def pointer(dtype: Any) -> Any:
    """The type of an address of elements of a dtype."""
    return tvm.ir.PointerType(tvm.ir.PrimType(str(dtype)))


def tiles_on_stack(stmt: Any) -> Any:
    """Put register tiles' accumulators on the stack, from where LLVM takes them into registers.

    TVM would take 1024 bytes and more from the heap, at every tile, and no register would hold them.
    """
    if isinstance(stmt, tirx.AllocBuffer) and stmt.buffer.scope() == "local":
        return _on_stack(stmt.buffer)
    return inside(stmt, tiles_on_stack)


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
    return int(tvm.DataType(str(buffer.dtype)).bits) // 8


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
    if isinstance(stmt, tirx.IfThenElse) and stmt.else_case is None:
        return tirx.IfThenElse(stmt.condition, take_allocations(stmt.then_case, taken), None)
    return stmt


def place_in_workspace(allocations: list[Any], workspace: Any) -> tuple[list[Any], Any]:
    """Put the buffers that all workers share into the caller's workspace: a call allocates nothing."""
    stmts: list[Any] = []
    size: Any = tirx.const(0, "int64")
    for allocation in allocations:
        stmts += _at(allocation.buffer, workspace + size)
        size = size + _padded_bytes(allocation.buffer)
    return stmts, size


def place_workers(stmt: Any, workspace: Any, threads: Any) -> tuple[Any, Any]:
    """Put the buffers of each worker into the workspace, which begins with them: (statement, bytes). Loops
    that run one after the other use the same bytes."""
    if isinstance(stmt, tirx.SeqStmt):
        placed = [place_workers(s, workspace, threads) for s in stmt.seq]
        size: Any = tirx.const(0, "int64")
        for _, own in placed:
            size = tirx.max(size, own)
        return tirx.SeqStmt([s for s, _ in placed]), size
    if not isinstance(stmt, tirx.For):
        return stmt, tirx.const(0, "int64")
    if int(stmt.kind) != int(tirx.ForKind.PARALLEL):
        body, size = place_workers(stmt.body, workspace, threads)
        return with_body(stmt, body), size
    taken: list[Any] = []
    body = _take_large(stmt.body, taken)
    _, one = place_in_workspace(taken, workspace)
    own = workspace + tirx.Cast("int64", stmt.loop_var) * one
    prologue, _ = place_in_workspace(taken, own)
    return with_body(stmt, sequence([*prologue, body])), tirx.Cast("int64", threads) * one


_STACK_BYTES = 1024  # of constant size, below which TVM puts a buffer on the stack


def _take_large(stmt: Any, taken: list[Any]) -> Any:
    if isinstance(stmt, tirx.SeqStmt):
        return tirx.SeqStmt([_take_large(s, taken) for s in stmt.seq])
    if isinstance(stmt, tirx.For):
        return with_body(stmt, _take_large(stmt.body, taken))
    if isinstance(stmt, tirx.IfThenElse):
        other = None if stmt.else_case is None else _take_large(stmt.else_case, taken)
        return tirx.IfThenElse(stmt.condition, _take_large(stmt.then_case, taken), other)
    if isinstance(stmt, tirx.While):
        return tirx.While(stmt.condition, _take_large(stmt.body, taken))
    if not isinstance(stmt, tirx.AllocBuffer):
        return stmt
    if stmt.buffer.scope() == "local":
        return _on_stack(stmt.buffer)
    fixed = all(isinstance(extent, tirx.IntImm) for extent in stmt.buffer.shape)
    size = _element_bytes(stmt.buffer)
    if fixed and size * math.prod(map(int, stmt.buffer.shape)) < _STACK_BYTES:
        return stmt
    taken.append(stmt)
    return tirx.Evaluate(tirx.const(0, "int32"))


def _at(buffer: Any, address: Any) -> list[Any]:
    kind = pointer(buffer.dtype)
    handle = tirx.Var(f"{buffer.name}_data", kind)
    bind = tirx.Bind(handle, tirx.reinterpret(kind, address))
    return [bind, tirx.DeclBuffer(buffer, data=handle)]


def _padded_bytes(buffer: Any) -> Any:
    count: Any = tirx.const(_element_bytes(buffer), "int64")
    for extent in buffer.shape:
        count = count * tirx.Cast("int64", extent)
    return tirx.floordiv(count + 63, 64) * 64
