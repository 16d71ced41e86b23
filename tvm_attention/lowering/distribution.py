"""Dealing tasks out to threads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import tvm
from tvm import tirx

from tvm_attention.compute.problem import ceil_div
from tvm_attention.lowering.memory import take_allocations
from tvm_attention.lowering.statements import sequence, statements
from tvm_attention.workload import AttentionWorkload

_TAKE = "tvm_attention_take"
# Of order there is none to keep: launching the threads and joining them orders all memory.
_IR = f"""
define i32 @{_TAKE}(ptr %taken) alwaysinline {{
  %number = atomicrmw add ptr %taken, i32 1 monotonic
  ret i32 %number
}}
"""
_APART = 16  # int32 between the counters of two workers, so that each has a cache line


def distribute(stmt: Any, symbols: Mapping[str, Any], w: AttentionWorkload) -> Any:
    """Give each of ``threads`` workers its tasks, with a task's buffers allocated once a worker.

    A worker takes a contiguous run, so that neighbouring query blocks meet their keys in its cache.
    Causal tasks grow along the sequence: they are dealt out in turn unless every worker gets whole
    heads anyway. So are those of sequences of their own lengths, some of which have no rows at all.

    A worker that has done its own tasks takes what others have left: cores differ, and what else runs on
    them comes and goes. Which worker computes a task makes no difference to its result.
    """
    if isinstance(stmt, tirx.SeqStmt):
        return sequence([x for s in stmt.seq for x in statements(distribute(s, symbols, w))])
    if not isinstance(stmt, tirx.For) or "task" not in stmt.annotations:
        return stmt
    loops, body = _task_nest(stmt)
    worker, threads = tirx.Var("worker", "int32"), symbols["threads"]
    taken = tirx.decl_buffer((threads, _APART), "int32", name="taken", layout=None)
    buffers: list[Any] = []
    rest = statements(take_allocations(sequence(body), buffers))
    notes = loops[-1].annotations
    if "begun" in notes and (w.ragged or len(loops) > 3):  # some have no rows
        rest = [tirx.IfThenElse(notes["begun"], sequence(rest), None)]
    turns = _turns(loops, rest, worker, taken, _dealing(loops, symbols, w))
    # The extent must be a variable: the launch function (threads/launch.ll) reads it.
    parallel = tirx.For(worker, 0, threads, tirx.ForKind.PARALLEL, sequence([*buffers, turns]))
    each = tirx.Var("each", "int32")
    none = tirx.BufferStore(taken, tirx.const(0, "int32"), [each, 0])
    cleared = tirx.For(each, 0, threads, tirx.ForKind.SERIAL, none)
    return sequence([tirx.AllocBuffer(taken), cleared, parallel])


def with_counters(stmt: Any) -> Any:
    """A kernel's statement with the function by which its workers take tasks linked into its module."""
    code = tvm.ir.StringImm(_IR)
    return tirx.AttrStmt(tvm.ir.StringImm("import"), "pragma_import_llvm", code, stmt)


@dataclass(frozen=True)
class _Dealing:
    """How many tasks and workers there are, and whether a worker's own tasks lie side by side: otherwise
    they are ``threads`` apart."""

    total: Any
    threads: Any
    side_by_side: Any

    def count(self, worker: Any) -> Any:
        """Tasks of a worker's own."""
        run = ceil_div(self.total, self.threads)
        in_turn = ceil_div(self.total - worker, self.threads)
        own = tirx.min(run, self.total - worker * run)
        return tirx.Select(self.side_by_side, own, in_turn)

    def task(self, worker: Any, number: Any) -> Any:
        """The number of a worker's task among all."""
        first = worker * ceil_div(self.total, self.threads)
        return tirx.Select(self.side_by_side, first + number, worker + number * self.threads)


def _dealing(loops: list[Any], symbols: Mapping[str, Any], w: AttentionWorkload) -> _Dealing:
    total, threads = loops[0].extent, symbols["threads"]
    for loop in loops[1:]:
        total = total * loop.extent
    heads = tirx.floormod(symbols["batch"] * symbols["query_heads"], threads).equal(0)
    side_by_side = tirx.const(not w.ragged, "bool")
    return _Dealing(total, threads, heads if w.causal and not w.ragged else side_by_side)


def _turns(loops: list[Any], body: list[Any], worker: Any, taken: Any, dealing: _Dealing) -> Any:
    """A worker's tasks, then those that are left of each other worker."""
    turn, threads = tirx.Var("turn", "int32"), dealing.threads
    held = tirx.decl_buffer((2,), "int32", name="dealt", scope="local", layout=None)
    other, number = (tirx.BufferLoad(held, [n]) for n in (0, 1))
    around = worker + turn
    whose = tirx.Select(around < threads, around, around - threads)
    counter = tirx.address_of(tirx.BufferLoad(taken, [other, 0]))
    take = tirx.BufferStore(held, tirx.call_extern("int32", _TAKE, counter), [1])
    task = [*_task_indices(loops, dealing.task(other, number)), *body, take]
    tasks = tirx.While(number < dealing.count(other), tirx.SeqStmt(task))
    own = tirx.SeqStmt([tirx.BufferStore(held, whose, [0]), take, tasks])
    each = tirx.For(turn, 0, threads, tirx.ForKind.SERIAL, own)
    return tirx.SeqStmt([tirx.AllocBuffer(held), each])


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
