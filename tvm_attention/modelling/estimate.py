"""From machine code to time: cycles of the loops, spills, short loops that overlap, and lines of memory."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

from tvm_attention.errors import TuningError
from tvm_attention.modelling.code import Code, CodeLoop, CodeRegion
from tvm_attention.modelling.cores import Core
from tvm_attention.modelling.machine_code import Steady
from tvm_attention.modelling.self_check import steady_cycles
from tvm_attention.modelling.task_weights import query_blocks
from tvm_attention.modelling.traffic import lines_into, lines_that_stay
from tvm_attention.schedules import Candidate, MachineParameters
from tvm_attention.work import all_bytes, flops, kv_bytes
from tvm_attention.workload import AttentionWorkload

LINE = 64
_MOST_OVERLAP = 8.0
# Of all instructions: loops with fewer are not analysed, but counted at so many instructions a cycle.
_MINOR = 0.003
_MINOR_RATE = 2.0
# Of the time to read from memory while decoding, by how many key vectors ahead lines are asked for, and by
# how many places of memory are read at a time: measured on Sapphire Rapids (8192 keys, one and four query
# rows a key-value head), where a processor left to itself starts anew at every page. Without them a search
# saves instructions at the expense of memory. Of other cores it is not known.
_ASKED_AHEAD = {0: 1.07, 1: 1.0, 2: 1.01}
_FAR_AHEAD = 1.06
_STREAMS = {1: 1.06, 2: 1.02}
# Vectors of multiply-adds over those that the work needs: exp2, tails and rows beyond a causal mask's
# edge are below. Above, branches that exclude each other have been counted both.
_MOST_MULTIPLIES = 1.7
# Keys and values and their copies, of which all tasks of a head read the same; what else comes from
# outside: all other tensors are a worker's own, which the next task finds in L2.
_SHARED = frozenset({"key", "value", "KP", "VP"})
_OUTSIDE = _SHARED | {"query", "out", "mask"}
# Of the shorter of computing and reading from memory: what the longer does not hide.
_NOT_HIDDEN = 0.25


@dataclass(frozen=True)
class Estimate:
    """Cycles of the slowest thread: of its instructions, of lines that its caches fetch, and of lines
    from memory that all threads together read and write, as far as each adds to the total."""

    computing: float
    caches: float
    memory: float

    @property
    def cycles(self) -> float:
        inside = self.computing + self.caches
        return max(inside, self.memory) + _NOT_HIDDEN * min(inside, self.memory)


def estimate(
    code: Code,
    workload: AttentionWorkload,
    candidate: Candidate,
    core: Core,
    machine: MachineParameters,
) -> Estimate:
    """The time of a candidate's code on a core, in cycles. Raises TuningError where it does not add up."""
    _require_understood(code, workload, candidate, machine)
    major = _major(code)
    known = dict(zip(major, steady_cycles(tuple(major), code.kind, core), strict=True))
    blocks = query_blocks(workload, candidate, machine.lanes)
    alike = 1.0 if blocks is None else blocks.neighbours(code.threads)
    computing = caches = 0.0
    for region in code.regions:
        cycles = sum(_cycles(loop, known.get(loop.instructions), core) for loop in region.loops)
        computing += region.slowest * cycles
        copies = blocks is not None and region is not code.regions[-1]
        lines = (
            _copying(region, workload, core, machine)
            if copies
            else _fetching(region, core, machine, alike)
        )
        caches += region.slowest * lines
    return Estimate(computing, caches, _memory(workload, candidate, core, code.threads))


def _memory(w: AttentionWorkload, candidate: Candidate, core: Core, threads: int) -> float:
    """Cycles of lines from memory: of decoding, which uses each once."""
    if candidate.variant != "split_kv":
        return 0.0
    lines = all_bytes(w) / LINE / threads
    asked = _ASKED_AHEAD.get(candidate["prefetch"], _FAR_AHEAD)
    return core.line_memory * lines * asked * _STREAMS.get(candidate["streams"], 1.0)


def _require_understood(
    code: Code, w: AttentionWorkload, candidate: Candidate, machine: MachineParameters
) -> None:
    """Of branches that exclude each other, both are counted: the last tile's where it has fewer rows."""
    c = dict(candidate.decisions)
    assert w.value_dim is not None
    if c.get("queries_along_lanes", 1) and w.value_dim % c.get("value_rows", 1):
        raise TuningError(
            f"value_rows={c['value_rows']} leaves rows over, whose branches are not understood"
        )
    done = sum(
        region.tasks * loop.times * loop.counts.fma
        for region in code.regions
        for loop in region.loops
    )
    needed = flops(w) / 2 / machine.lanes
    if not 1.0 - 0.05 <= done / needed <= _MOST_MULTIPLIES:
        raise TuningError(
            f"{done / needed:.2f} times the multiply-adds of the work: its branches are not understood"
        )


def _major(code: Code) -> list[tuple[str, ...]]:
    """The instructions of the loops in which the time goes, each once."""
    work: dict[tuple[str, ...], float] = defaultdict(float)
    for region in code.regions:
        for loop in region.loops:
            work[loop.instructions] += region.slowest * loop.times * len(loop.instructions)
    total = sum(work.values())
    return [loop for loop, count in work.items() if count > _MINOR * total]


def _cycles(loop: CodeLoop, steady: Steady | None, core: Core) -> float:
    """Of all turns in a task."""
    if steady is None:
        return loop.times * len(loop.instructions) / _MINOR_RATE
    cycles = steady.cycles
    if core.window and loop.innermost:
        # The next entry of a short loop starts while this one waits for its last results.
        overlap = core.window / max(1.0, steady.operations * loop.turns)
        at_once = min(_MOST_OVERLAP, max(1.0, overlap))
        cycles = max(min(steady.throughput, cycles), cycles / at_once)
    return (cycles + core.spill * loop.counts.spills) * loop.times


def _fetching(region: CodeRegion, core: Core, machine: MachineParameters, alike: float) -> float:
    """Cycles of lines that a task fetches. What ``alike`` tasks one after the other read, if it stays in
    L2, is fetched from beyond once for all."""
    l1 = lines_into(region.nest, machine.l1)
    stay = lines_that_stay(region.nest, machine.l2)
    if stay is None:
        l2 = lines_into(region.nest, machine.l2)
    else:
        outside = {b: n for b, n in stay.items() if b in _OUTSIDE}
        l2 = sum(n / alike if buffer in _SHARED else n for buffer, n in outside.items())
    return core.line_l1 * l1 + core.line_l2 * l2


def _copying(
    region: CodeRegion, w: AttentionWorkload, core: Core, machine: MachineParameters
) -> float:
    """Cycles of lines of a task that copies keys or values: it waits for memory, unless all fits into L2."""
    lines = lines_into(region.nest, machine.l1)
    fits = kv_bytes(w) <= machine.l2
    return lines * (core.line_l1 + (core.line_l2 if fits else core.line_memory))
