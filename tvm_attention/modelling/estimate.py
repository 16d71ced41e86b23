"""From machine code to time: cycles of the loops, spills, short loops that overlap, and lines of memory."""

from __future__ import annotations

from dataclasses import dataclass

from tvm_attention.modelling.code import Code, CodeLoop, CodeRegion
from tvm_attention.modelling.cores import Core
from tvm_attention.modelling.machine_code import Steady
from tvm_attention.modelling.self_check import steady_cycles
from tvm_attention.modelling.traffic import lines_into
from tvm_attention.schedules import MachineParameters
from tvm_attention.work import all_bytes
from tvm_attention.workload import AttentionWorkload

LINE = 64
_MOST_OVERLAP = 8.0
# Of the shorter of computing and reading from memory: what the longer does not hide.
_NOT_HIDDEN = 0.25


@dataclass(frozen=True)
class Estimate:
    """Cycles of the slowest thread: of its instructions, of lines that its caches fetch, and of lines from memory
    that all threads together read and write, as far as each adds to the total."""

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
    core: Core,
    machine: MachineParameters,
    threads: int,
) -> Estimate:
    """The time of a kernel on a core, in cycles."""
    loops = [loop for region in code.regions for loop in region.loops]
    steady = iter(steady_cycles([loop.instructions for loop in loops], code.kind, core))
    computing = caches = 0.0
    for region in code.regions:
        cycles = sum(_cycles(loop, next(steady), core) for loop in region.loops)
        computing += region.slowest * cycles
        caches += region.slowest * _fetching(region, core, machine)
    lines = all_bytes(workload) / LINE
    decodes = workload.length_class.startswith("decode")
    memory = core.line_memory * lines / threads if decodes else 0.0
    return Estimate(computing, caches, memory)


def _cycles(loop: CodeLoop, steady: Steady, core: Core) -> float:
    """Of all turns in a task."""
    cycles = steady.cycles
    if core.window and loop.innermost:
        # The next entry of a short loop starts while this one waits for its last results.
        overlap = core.window / max(1.0, steady.operations * loop.turns)
        at_once = min(_MOST_OVERLAP, max(1.0, overlap))
        cycles = max(min(steady.throughput, cycles), cycles / at_once)
    return (cycles + core.spill * loop.counts.spills) * loop.times


def _fetching(region: CodeRegion, core: Core, machine: MachineParameters) -> float:
    l1 = lines_into(region.nest, machine.l1)
    l2 = lines_into(region.nest, machine.l2)
    return core.line_l1 * l1 + core.line_l2 * l2
