"""The machine code of a candidate's tasks as loops with their counts, ready for any core that it is code
for."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from tvm_attention._tvm import import_tvm, signals_left_alone
from tvm_attention.errors import KernelBuildError, TuningError
from tvm_attention.modelling.assembly import Block, Loop, function_blocks, natural_loops
from tvm_attention.modelling.instructions import Counts, analysable, counts
from tvm_attention.modelling.lengths import scalars, strides
from tvm_attention.modelling.nests import Nest
from tvm_attention.modelling.trip_counts import IrLoop, functions, ir_loops
from tvm_attention.schedules import Candidate
from tvm_attention.target import HardwareTarget
from tvm_attention.workload import AttentionWorkload

_CALL = re.compile(r"(?:callq?|bl)\s+([A-Za-z_]\w*)")
# Of a few lines each; anything else would be work that no analyser sees.
_HARMLESS = frozenset({"memset", "memcpy", "memmove"})


@dataclass(frozen=True)
class CodeLoop:
    """Instructions of one turn of a loop, without those of loops inside; how often a task turns it in
    all, how often at a time, and whether there is no loop inside."""

    instructions: tuple[str, ...]
    counts: Counts
    times: float
    turns: float
    innermost: bool


@dataclass(frozen=True)
class CodeRegion:
    """A parallel loop: the loops of a task, what it reads and writes, and how many tasks the slowest of
    the threads has and how many there are."""

    loops: tuple[CodeLoop, ...]
    nest: Nest
    slowest: float
    tasks: float


@dataclass(frozen=True)
class Code:
    """All parallel loops of a kernel on so many threads. ``kind`` is "x86" or "arm"."""

    kind: str
    regions: tuple[CodeRegion, ...]
    threads: int


def code_of(
    workload: AttentionWorkload, target: HardwareTarget, candidate: Candidate, threads: int
) -> Code:
    """Compiles a candidate for a target and reads its machine code.

    Raises KernelBuildError if TVM cannot build it, TuningError for code that cannot be modelled.
    """
    import_tvm()
    from tvm_attention.lowering.machine_code import compiled
    from tvm_attention.modelling.accesses import nest_of
    from tvm_attention.modelling.one_task import task_kernel

    try:
        with signals_left_alone():
            kernel = task_kernel(workload, target, candidate, threads)
            library = compiled({"main": kernel.main}, target)
            text, ir = (library.mod.inspect_source(form) for form in ("asm", "ll"))
    except Exception as error:
        raise KernelBuildError(f"TVM could not build {candidate}: {error}") from error
    names, trees = functions(ir), ir_loops(ir)
    if len(names) != len(kernel.regions):
        raise TuningError(f"{len(kernel.regions)} parallel loops, {len(names)} functions of them")
    sizes = {**strides(workload), **scalars(workload, threads)}
    regions = [
        CodeRegion(
            tuple(_loops(text, target.kind, name, trees.get(name, []))),
            nest_of(region.body, sizes),
            region.slowest,
            region.tasks,
        )
        for name, region in zip(names, kernel.regions, strict=True)
    ]
    return Code(target.kind, tuple(regions), threads)


def _loops(text: str, kind: str, name: str, ir: list[IrLoop]) -> list[CodeLoop]:
    blocks = function_blocks(text, kind, name)
    called = {m[1] for b in blocks for i in b.instructions if (m := _CALL.match(i))}
    if unknown := sorted(called - _HARMLESS):
        raise TuningError(f"calls {', '.join(unknown)}, whose time is not known")
    found: list[CodeLoop] = []
    _walk(ir, natural_loops(blocks), blocks, kind, 1.0, found)
    return found


def _shape(loop: IrLoop | Loop) -> tuple[Any, ...]:
    return tuple(_shape(inner) for inner in loop.inner)


def _alike(ir: list[IrLoop], loops: list[Loop]) -> list[Loop]:
    """The loops in the order of the IR's: of branches that exclude each other, either may come first."""
    left, found = list(loops), []
    for known in ir:
        same = next((loop for loop in left if _shape(loop) == _shape(known)), left[0])
        left.remove(same)
        found.append(same)
    return found


def _walk(
    ir: list[IrLoop],
    loops: list[Loop],
    blocks: list[Block],
    kind: str,
    entries: float,
    found: list[CodeLoop],
) -> None:
    """Adds loops of the machine code with the counts of the IR's, which they match in shape and, but for
    branches, in order."""
    if len(ir) != len(loops):
        raise TuningError(f"{len(ir)} loops in the IR, {len(loops)} in the machine code")
    for known, loop in zip(ir, _alike(ir, loops), strict=True):
        if known.turns is None and not found:
            turns = 1.0  # the loop over workers, of whom one is modelled
        elif known.turns is None:
            raise TuningError(f"how often the loop {known.name} turns is not known")
        else:
            turns = known.turns
        own = [i for block in loop.own for i in blocks[block].instructions]
        times = entries * turns
        kept = tuple(analysable(own, kind))
        found.append(CodeLoop(kept, counts(own, kind), times, turns, not loop.inner))
        _walk(known.inner, loop.inner, blocks, kind, times, found)
