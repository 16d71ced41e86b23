"""Dealing tasks out to threads."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tvm import tirx

from tvm_attention.compute.problem import ceil_div
from tvm_attention.lowering.memory import take_allocations
from tvm_attention.lowering.statements import sequence, statements
from tvm_attention.workload import AttentionWorkload


def distribute(stmt: Any, symbols: Mapping[str, Any], w: AttentionWorkload) -> Any:
    """Give each of ``threads`` workers its tasks, with a task's buffers allocated once a worker.

    A worker takes a contiguous run, so that neighbouring query blocks meet their keys in its cache.
    Causal tasks grow along the sequence: they are dealt out in turn unless every worker gets whole
    heads anyway. So are those of sequences of their own lengths, some of which have no rows at all.
    """
    if isinstance(stmt, tirx.SeqStmt):
        return tirx.SeqStmt([distribute(s, symbols, w) for s in stmt.seq])
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
    if w.causal or w.ragged:
        heads = tirx.floormod(symbols["batch"] * symbols["query_heads"], threads).equal(0)
        whole = tirx.const(False, "bool") if w.ragged else heads
        first = tirx.Select(whole, first, worker)
        stride = tirx.Select(whole, stride, threads)
        count = tirx.Select(whole, count, ceil_div(total - worker, threads))
    buffers: list[Any] = []
    rest = statements(take_allocations(sequence(body), buffers))
    notes = loops[-1].annotations
    if "begun" in notes and (w.ragged or len(loops) > 3):  # some have no rows
        rest = [tirx.IfThenElse(notes["begun"], sequence(rest), None)]
    task = tirx.SeqStmt([*_task_indices(loops, first + step * stride), *rest])
    tasks = tirx.For(step, 0, tirx.max(count, 0), tirx.ForKind.SERIAL, task)
    # The extent must be a variable: the launch function (threads/launch.ll) reads it.
    return tirx.For(worker, 0, threads, tirx.ForKind.PARALLEL, sequence([*buffers, tasks]))


def _task_nest(loop: Any) -> tuple[list[Any], list[Any]]:
    """The nested task loops, outermost first, and the statements inside them."""
    loops = [loop]
    for _ in range(int(loop.annotations["task"]) - 1):
        loops.append(loops[-1].body)
    return loops, statements(loops[-1].body)


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
