"""A candidate's kernel cut down to single tasks at the lengths of its workload, for a model to read.

The kernel that runs takes lengths as arguments and loops over tasks; the trip counts of its loops are
known only when it runs. With lengths and the number of a task put in, all of them are constants. The
loops that matter are the same: tails and choices between strips of fewer vectors, which that task does
not need, fall away.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tvm import tirx
from tvm.sym import Analyzer

from tvm_attention.lowering import lower
from tvm_attention.lowering.parts import Parts
from tvm_attention.lowering.statements import (
    at,
    inside,
    load_of,
    rebuilt,
    sequence,
    statements,
    substituted,
    with_body,
)
from tvm_attention.modelling.lengths import scalars
from tvm_attention.modelling.task_weights import QueryBlocks, query_blocks, slowest_worker
from tvm_attention.schedules import Candidate, schedules_for
from tvm_attention.target import HardwareTarget
from tvm_attention.workload import AttentionWorkload


@dataclass(frozen=True)
class Region:
    """A parallel loop of the kernel: the body of the task that is modelled, how many of these the
    slowest of the threads computes, and how many there are in all."""

    body: Any
    slowest: float
    tasks: float


@dataclass(frozen=True)
class TaskKernel:
    """The kernel's function, and its parallel loops in order."""

    main: Any
    regions: tuple[Region, ...]


def task_kernel(
    workload: AttentionWorkload, target: HardwareTarget, candidate: Candidate, threads: int
) -> TaskKernel:
    """The kernel with one task a parallel loop."""
    schedules = schedules_for(target)
    machine = schedules.machine_parameters(target)
    schedule = schedules.build(workload, machine, candidate)
    lowered = lower(
        schedule.mod["main"],
        workload,
        element_operand=machine.element_operand,
        bfmmla=machine.bfmmla,
        first_apart=False,  # LLVM turns a loop whose first turn differs inside out
    )
    values = scalars(workload, threads)
    known = {
        p: tirx.const(values[p.name], "int32") for p in lowered.main.params if p.name in values
    }
    main = lowered.main.specialize(known)
    loops: list[Any] = []
    _parallel_loops(main.body, loops)
    if lowered.parts is not None:
        parts = _parts(lowered.parts, known)
        loops = [substituted(loop, parts) for loop in loops]
        candidate = candidate.replace(query_strips=int(parts[lowered.parts.strips]))
    blocks = query_blocks(workload, candidate, machine.lanes)
    cut, regions = {}, []
    for n, loop in enumerate(loops):
        body, region = _one_task(loop, workload, threads, blocks if n == len(loops) - 1 else None)
        cut[n] = body
        regions.append(region)
    left = iter(range(len(loops)))
    main = main.with_body(_with_bodies(main.body, cut, left)).with_attr("global_symbol", "main")
    return TaskKernel(main, tuple(regions))


def _parts(parts: Parts, known: Mapping[Any, Any]) -> dict[Any, Any]:
    """The constants that a call cuts its tasks by."""
    analyzer = Analyzer()
    for variable, value in known.items():
        analyzer.bind(variable, value)
    count = tirx.const(int(analyzer.simplify(parts.count_value)), "int32")
    analyzer.bind(parts.count, count)
    return {parts.count: count, parts.strips: analyzer.simplify(parts.strips_value)}


def _one_task(
    loop: Any, w: AttentionWorkload, threads: int, blocks: QueryBlocks | None
) -> tuple[Any, Region]:
    """One worker's one task in place of its loops over workers and their tasks (lowering.distribution)."""
    *buffers, workers = statements(at(loop.body, {loop.loop_var: 0}))
    dealt, *_, own = statements(at(workers.body, {workers.loop_var: 0}))
    number = 0 if blocks is None else blocks.modelled

    def known(expression: Any) -> Any:
        """The first worker's task of this number, where an expression asks which is dealt out."""
        loaded = getattr(expression, "source", None)
        if loaded is None or not loaded.same_as(dealt.buffer):
            return None
        return tirx.const((0, number)[int(expression.indices[0])], "int32")

    tasks = int(Analyzer().simplify(rebuilt(own.condition.b, known)))
    *steps, _next = statements(own.body)
    one = [
        tirx.BufferStore(s.buffer, rebuilt(s.value, known), s.indices)
        if isinstance(s, tirx.BufferStore)
        else s
        for s in steps
    ]
    body = without_repairs(sequence([*buffers, *one]))
    if blocks is None:
        region = Region(body, -(-tasks // threads), tasks)
    else:
        heads, weights = w.batch * w.query_heads, blocks.weights()
        slowest = slowest_worker(weights, heads, threads, in_turn=bool(w.causal) or w.ragged)
        region = Region(body, slowest, sum(weights) * heads)
    return body, region


def without_repairs(stmt: Any) -> Any:
    """The statement without what runs only where values are not finite."""
    if isinstance(stmt, tirx.IfThenElse) and any(
        load_of(name, stmt.condition) is not None for name in ("VB", "FLAG")
    ):
        return tirx.Evaluate(tirx.const(0, "int32"))
    return inside(stmt, without_repairs)


def _parallel_loops(stmt: Any, found: list[Any]) -> None:
    if isinstance(stmt, tirx.For) and int(stmt.kind) == int(tirx.ForKind.PARALLEL):
        found.append(stmt)
    elif isinstance(stmt, tirx.SeqStmt):
        for s in stmt.seq:
            _parallel_loops(s, found)
    elif isinstance(stmt, (tirx.AttrStmt, tirx.For)):
        _parallel_loops(stmt.body, found)


def _with_bodies(stmt: Any, bodies: dict[int, Any], number: Any) -> Any:
    """The statement with its parallel loops' bodies replaced, in order."""
    if isinstance(stmt, tirx.For) and int(stmt.kind) == int(tirx.ForKind.PARALLEL):
        # Two workers: TVM would take a loop of one for none.
        two = tirx.const(2, "int32")
        return tirx.For(stmt.loop_var, stmt.min, two, stmt.kind, bodies[next(number)])
    if isinstance(stmt, tirx.SeqStmt):
        return tirx.SeqStmt([_with_bodies(s, bodies, number) for s in stmt.seq])
    if isinstance(stmt, tirx.AttrStmt):
        inner = _with_bodies(stmt.body, bodies, number)
        return tirx.AttrStmt(stmt.node, stmt.attr_key, stmt.value, inner)
    if isinstance(stmt, tirx.For):
        return with_body(stmt, _with_bodies(stmt.body, bodies, number))
    return stmt
