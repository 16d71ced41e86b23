"""From a schedule to the function that is compiled: exact loop extents, threads, plain pointers.

Tuning and the loader both lower through :func:`lower`, so what was measured is what runs.

Schedules mark loops with annotations; here, on block-free TIR, where only loops stand above the bodies,
their extents are shortened to what is valid and, when causal, visible:

===============  ===========================================================================
``task``         the outermost of this many nested loops whose iterations are independent tasks
``query_block``  blocks of that many query rows; defines the keys and rows of a task
``split``        splits of the keys, in vectors of that many; defines ``split_vectors`` inside
``valid_keys``   keys of the task, in units of the given number
``valid_rows``   query rows of the task, in units of the given number
``key_block``    blocks of that many keys; defines ``block_keys`` inside
``key_blocks``   the same count of blocks, defining nothing
``block_keys``   keys of the current block, in units of the given number
``split_vectors``  key vectors of the current split
===============  ===========================================================================

It runs after CompactBufferAllocation, which would otherwise shrink buffers to task-dependent sizes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import tvm
from tvm import tirx
from tvm.s_tir import transform

from tvm_attention.compute import SCALARS, STRIDES, TENSORS
from tvm_attention.compute.problem import FLAT_SIZE, ceil_div

_POINTER = tvm.ir.PointerType(tvm.ir.PrimType("float32"))

Symbols = Mapping[str, Any]


@dataclass(frozen=True)
class _Scope:
    """What is valid at a place in the loop nest."""

    keys: Any = None
    rows: Any = None
    block_keys: Any = None
    split_vectors: Any = None


@dataclass(frozen=True)
class LoweredKernel:
    """``main`` computes; ``workspace`` takes the scalars and returns the bytes ``main`` needs."""

    main: tirx.PrimFunc
    workspace: tirx.PrimFunc


def lower(func: tirx.PrimFunc, causal: bool) -> LoweredKernel:
    """Lower a scheduled kernel to a function of pointers and scalars.

    Parameters are the int64 addresses of query, key, value, out and a 64-byte aligned workspace, then
    :data:`SCALARS`, then the (batch, head, row) strides in elements of query, key, value and out as
    int64.
    """
    blocks = _lower_blocks(tvm.IRModule({"main": func}))["main"]
    symbols = {p.name: p for p in blocks.params}
    body = _Narrowing(symbols, causal).rewrite(blocks.body, _Scope())
    shared: list[Any] = []
    rest = _statements(_take_allocations(_distribute(body, symbols, causal), shared))
    workspace = tirx.Var("workspace_address", "int64")
    prologue, size = _place_in_workspace(shared, workspace)
    main = _pointer_function(blocks, [*prologue, *rest], workspace, symbols)
    total = tirx.PrimFunc(
        [symbols[n] for n in SCALARS], tirx.Return(size), tvm.ir.PrimType("int64")
    )
    total = total.with_attrs({"global_symbol": "workspace", "tirx.noalias": True})
    return LoweredKernel(main, total)


def _take_allocations(stmt: Any, taken: list[Any]) -> Any:
    """Remove the allocations that stand outside the workers' loops; they go to the workspace."""
    if isinstance(stmt, tirx.SeqStmt):
        kept = []
        for s in stmt.seq:
            if isinstance(s, tirx.AllocBuffer) and s.buffer.scope() == "global":
                taken.append(s)
            else:
                kept.append(_take_allocations(s, taken))
        return _sequence(kept)
    if isinstance(stmt, tirx.For) and int(stmt.kind) != int(tirx.ForKind.PARALLEL):
        return _with_body(stmt, _take_allocations(stmt.body, taken))
    return stmt


def _place_in_workspace(allocations: list[Any], workspace: Any) -> tuple[list[Any], Any]:
    """Put the buffers that all workers share into the caller's workspace: a call allocates nothing."""
    stmts: list[Any] = []
    size: Any = tirx.const(0, "int64")
    for allocation in allocations:
        buffer = allocation.buffer
        count: Any = tirx.const(4, "int64")
        for extent in buffer.shape:
            count = count * tirx.Cast("int64", extent)
        handle = tirx.Var(f"{buffer.name}_data", _POINTER)
        stmts.append(tirx.Bind(handle, tirx.reinterpret(_POINTER, workspace + size)))
        stmts.append(tirx.DeclBuffer(buffer, data=handle))
        size = size + tirx.floordiv(count + 63, 64) * 64
    return stmts, size


def _lower_blocks(mod: tvm.IRModule) -> tvm.IRModule:
    """TVM's default passes up to LowerOpaqueBlock: buffers have their full sizes, annotations survive."""
    for step in (
        transform.CanonicalizeLoop(),
        transform.LowerInitBlock(),
        transform.PlanAndUpdateBufferAllocationLocation(),
        transform.ConvertBlocksToOpaque(),
        transform.CompactBufferAllocation(),
        transform.LowerMatchBuffer(),
        transform.StmtSimplify(),
        transform.LowerOpaqueBlock(),
    ):
        mod = step(mod)
    return mod


class _Narrowing:
    """Rewrites annotated loops; everything else is kept as it is."""

    def __init__(self, symbols: Symbols, causal: bool) -> None:
        self.causal = causal
        self.queries, self.keys = symbols["query_length"], symbols["key_length"]
        self.offset, self.splits = symbols["causal_offset"], symbols["splits"]

    def rewrite(self, stmt: Any, scope: _Scope) -> Any:
        if isinstance(stmt, tirx.SeqStmt):
            rewritten = [self.rewrite(s, scope) for s in stmt.seq]
            return tirx.SeqStmt([x for s in rewritten for x in _statements(s)])
        if isinstance(stmt, tirx.AllocBuffer) and stmt.buffer.scope() == "local":
            return _on_stack(stmt.buffer)
        if not isinstance(stmt, tirx.For):
            return stmt
        notes = dict(stmt.annotations)
        extent, scope = self._narrow(stmt, notes, scope)
        body = self.rewrite(stmt.body, scope)
        return tirx.For(
            stmt.loop_var, stmt.min, extent, stmt.kind, body, stmt.thread_binding, notes
        )

    def _narrow(self, loop: Any, notes: dict[str, Any], scope: _Scope) -> tuple[Any, _Scope]:
        """The loop's extent and the scope inside it; takes the annotations off."""
        extent = loop.extent
        if (block := notes.pop("query_block", None)) is not None:
            scope = self._query_scope(loop.loop_var, int(block))
        elif (lanes := notes.pop("split", None)) is not None:
            scope = self._split_scope(loop.loop_var, int(lanes))
        elif (size := notes.pop("key_block", None)) is not None:
            extent = ceil_div(scope.keys, int(size))
            here = tirx.min(int(size), scope.keys - loop.loop_var * int(size))
            scope = replace(scope, block_keys=here)
        elif (size := notes.pop("key_blocks", None)) is not None:
            extent = ceil_div(scope.keys, int(size))
        for name, valid in (
            ("valid_keys", scope.keys),
            ("valid_rows", scope.rows),
            ("block_keys", scope.block_keys),
            ("split_vectors", scope.split_vectors),
        ):
            if (unit := notes.pop(name, None)) is not None:
                extent = valid if int(unit) == 1 else ceil_div(valid, int(unit))
        return extent, scope

    def _query_scope(self, index: Any, block: int) -> _Scope:
        first = index * block
        rows = tirx.min(block, self.queries - first)
        keys = self.keys
        if self.causal:  # the last row sees the most; a task that sees none still computes one key
            keys = tirx.max(tirx.min(keys, first + rows + self.offset), 1)
        return _Scope(keys=keys, rows=rows)

    def _split_scope(self, index: Any, lanes: int) -> _Scope:
        vectors = ceil_div(ceil_div(self.keys, lanes), self.splits)
        left = ceil_div(self.keys, lanes) - index * vectors
        return _Scope(split_vectors=tirx.max(tirx.min(vectors, left), 0))


def _on_stack(buffer: Any) -> Any:
    """A register tile's accumulators as stack memory, which LLVM turns into registers.

    TVM would take 1024 bytes and more from the heap, at every tile, and no register would hold them.
    """
    size = 4
    for extent in buffer.shape:
        size *= int(extent)
    handle = tirx.Var(f"{buffer.name}_stack", _POINTER)
    memory = tirx.call_intrin("handle", "tirx.tvm_stack_alloca", "shape", -(-size // 8))
    bind = tirx.Bind(handle, tirx.reinterpret(_POINTER, memory))
    return tirx.SeqStmt([bind, tirx.DeclBuffer(buffer, data=handle)])


def _distribute(stmt: Any, symbols: Symbols, causal: bool) -> Any:
    """Give each of ``threads`` workers its tasks, with a task's buffers allocated once a worker.

    A worker takes a contiguous run, so that neighbouring query blocks meet their keys in its cache.
    Causal tasks grow along the sequence: they are dealt out in turn unless every worker gets whole
    heads anyway.
    """
    if isinstance(stmt, tirx.SeqStmt):
        return tirx.SeqStmt([_distribute(s, symbols, causal) for s in stmt.seq])
    if not isinstance(stmt, tirx.For) or "task" not in stmt.annotations:
        return stmt
    loops, body = _task_nest(stmt)
    worker, step = tirx.Var("worker", "int32"), tirx.Var("step", "int32")
    total, threads = loops[0].extent, symbols["threads"]
    for loop in loops[1:]:
        total = total * loop.extent
    run = ceil_div(total, threads)
    first, stride = worker * run, tirx.const(1, "int32")
    count = tirx.min(run, total - first)
    if causal:
        whole = tirx.floormod(symbols["batch"] * symbols["query_heads"], threads).equal(0)
        first = tirx.Select(whole, first, worker)
        stride = tirx.Select(whole, stride, threads)
        count = tirx.Select(whole, count, ceil_div(total - worker, threads))
    buffers = [s for s in body if isinstance(s, tirx.AllocBuffer)]
    rest = [s for s in body if not isinstance(s, tirx.AllocBuffer)]
    task = tirx.SeqStmt([*_task_indices(loops, first + step * stride), *rest])
    tasks = tirx.For(step, 0, tirx.max(count, 0), tirx.ForKind.SERIAL, task)
    return tirx.For(worker, 0, threads, tirx.ForKind.PARALLEL, _sequence([*buffers, tasks]))


def _with_body(loop: Any, body: Any) -> Any:
    return tirx.For(
        loop.loop_var, loop.min, loop.extent, loop.kind, body, loop.thread_binding, loop.annotations
    )


def _sequence(stmts: list[Any]) -> Any:
    return stmts[0] if len(stmts) == 1 else tirx.SeqStmt(stmts)


def _statements(stmt: Any) -> list[Any]:
    return list(stmt.seq) if isinstance(stmt, tirx.SeqStmt) else [stmt]


def _task_nest(loop: Any) -> tuple[list[Any], list[Any]]:
    """The nested task loops, outermost first, and the statements inside them."""
    loops = [loop]
    for _ in range(int(loop.annotations["task"]) - 1):
        loops.append(loops[-1].body)
    return loops, _statements(loops[-1].body)


def _task_indices(loops: list[Any], task: Any) -> list[Any]:
    """Statements that bind the loop variables of a task number.

    They go through memory (registers, after LLVM): bound expressions would be substituted into every
    index by TVM's simplifier, and a kernel would take 20 seconds to compile instead of 0.3.
    """
    indices = tirx.decl_buffer((len(loops),), "int32", name="task", scope="local", layout=None)
    stmts, left = [], task
    for n, loop in reversed(list(enumerate(loops))):
        value = left if n == 0 else tirx.truncmod(left, loop.extent)
        stmts.append(tirx.BufferStore(indices, value, [n]))
        left = tirx.truncdiv(left, loop.extent)
    binds = [
        tirx.Bind(loop.loop_var, tirx.BufferLoad(indices, [n])) for n, loop in enumerate(loops)
    ]
    return [tirx.AllocBuffer(indices), *stmts, *binds]


def _pointer_function(
    func: tirx.PrimFunc, stmts: list[Any], workspace: Any, symbols: Symbols
) -> tirx.PrimFunc:
    """Take addresses instead of tensors: a call then costs no tensor conversion and no views."""
    buffers = dict(zip(TENSORS, (symbols[n] for n in (*TENSORS[:3], "O")), strict=True))
    out_strides = [tirx.Var(f"out_{axis}_stride", "int64") for axis in STRIDES]
    strided = tirx.decl_buffer(
        (tirx.const(FLAT_SIZE, "int64"),), "float32", name="out", layout=None
    )
    stmts = [_store_strided(s, buffers["out"], strided, out_strides) for s in stmts]
    buffers["out"] = strided
    addresses, prologue = [], []
    for name, buffer in buffers.items():
        address, handle = tirx.Var(f"{name}_address", "int64"), tirx.Var(f"{name}_data", _POINTER)
        addresses.append(address)
        prologue.append(tirx.Bind(handle, tirx.reinterpret(_POINTER, address)))
        prologue.append(tirx.DeclBuffer(buffer, data=handle))
    strides = [symbols[f"{n}_{a}_stride"] for n in TENSORS[:3] for a in STRIDES]
    params = [*addresses, workspace, *(symbols[n] for n in SCALARS), *strides, *out_strides]
    whole: Any = tirx.SeqStmt([*prologue, *stmts])
    # Workspace allocation asks which device it is for; with tensors TVM would read that off the first.
    for key, value in (("device_type", 1), ("device_id", 0)):
        whole = tirx.AttrStmt(tvm.ir.StringImm("default"), key, tirx.const(value, "int32"), whole)
    return tirx.PrimFunc(params, whole, func.ret_type, func.attrs)


def _store_strided(stmt: Any, dense: Any, strided: Any, strides: list[Any]) -> Any:
    """Replace stores to the dense output by stores through the caller's strides."""

    def visit(s: Any) -> Any:
        if isinstance(s, tirx.SeqStmt):
            return tirx.SeqStmt([visit(x) for x in s.seq])
        if isinstance(s, tirx.For):
            return _with_body(s, visit(s.body))
        if isinstance(s, tirx.IfThenElse):
            other = None if s.else_case is None else visit(s.else_case)
            return tirx.IfThenElse(s.condition, visit(s.then_case), other)
        if isinstance(s, tirx.BufferStore) and s.buffer.same_as(dense):
            *outer, column = (tirx.Cast("int64", i) for i in s.indices)
            index = sum((i * w for i, w in zip(outer, strides, strict=True)), column)
            return tirx.BufferStore(strided, s.value, [index])
        return s

    return visit(stmt)
