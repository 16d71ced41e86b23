"""A count of pipelines for AArch64 cores whose model in LLVM is wrong: instructions start, in program
order or as soon as their operands are there, on pipelines that are free."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from tvm_attention.modelling.machine_code import Steady

_REGISTER = re.compile(r"\b([vqdshb]|[xw])(\d+)\b|\b(sp)\b")
_BASE = re.compile(r"\[(\w+)")
_WRITES_BACK = re.compile(r"\]!|\],")
_WITHOUT_RESULT = ("st", "b.", "cb", "tb", "cmp", "cmn", "tst", "prfm", "ccmp", "fcmp")
_FEW, _MANY = 2, 8  # turns, whose difference is steady


@dataclass(frozen=True)
class Use:
    """Of an instruction: the kind of pipeline that it starts on, the cycles that it keeps it, those until its
    result is there, and whether nothing starts together with it."""

    pipeline: str
    cycles: int
    latency: int
    alone: bool = False


@dataclass(frozen=True)
class Pipelines:
    """A core: instructions started a cycle, how many pipelines of each kind, instructions under way
    (0: started in program order) and what each class of instructions uses."""

    width: int
    pipelines: Mapping[str, int]
    window: int
    uses: Mapping[str, Use]


@dataclass(frozen=True)
class _Instruction:
    kind: str
    reads: tuple[str, ...]
    writes: tuple[str, ...]
    moved: str  # the address that it moves on, ready a cycle later; "" for none


def steady(loops: Sequence[Sequence[str]], core: Pipelines) -> list[Steady]:
    """As :func:`tvm_attention.modelling.machine_code.steady`."""
    found = []
    for loop in loops:
        read = [_read(text) for text in loop]
        cycles = (_run(read, core, _MANY) - _run(read, core, _FEW)) / (_MANY - _FEW)
        found.append(Steady(cycles, _throughput(read, core), float(len(read))))
    return found


@lru_cache(maxsize=4096)
def _read(text: str) -> _Instruction:
    name, _, operands = text.partition(" ")
    named = [("sp" if m[3] else _family(m[1]) + m[2]) for m in _REGISTER.finditer(operands)]
    results = 0 if name.startswith(_WITHOUT_RESULT) or name == "b" else 1
    if name.startswith(("ldp", "ld2")):
        results = 2
    elif name.startswith("ld4"):
        results = 4
    writes, reads = named[:results], named[results:]
    # They add to, or keep a part of, what they write.
    if name.startswith(("fmla", "fmls", "fmlal", "mla", "ins", "bfm", "sdot")) or _part(
        name, operands
    ):
        reads = [*reads, *writes]
    base = _BASE.search(operands)
    moved = base[1].replace("w", "x") if base and _WRITES_BACK.search(operands) else ""
    return _Instruction(_kind(name, operands), tuple(reads), tuple(writes), moved)


def _family(letter: str) -> str:
    return "x" if letter in "xw" else "v"


def _part(name: str, operands: str) -> bool:
    return name == "mov" and bool(re.match(r"\s*v\d+\.[bhsd]\[", operands))


def _kind(name: str, operands: str) -> str:
    vector = bool(re.search(r"\b[vqds]\d+\b", operands))
    if name.startswith(("ld", "prfm")):
        wide = bool(re.search(r"\bq\d+|v\d+\.(16b|8h|4s|2d)", operands))
        pair = name.startswith(("ldp", "ld2")) or operands.count("v") >= 2
        return (
            "prefetch"
            if name == "prfm"
            else ("pair " if pair else "") + ("wide load" if wide else "load")
        )
    if name.startswith("st"):
        wide = bool(re.search(r"\bq\d+|v\d+\.(16b|8h|4s|2d)", operands))
        return ("pair " if name.startswith("stp") else "") + ("wide store" if wide else "store")
    if name == "b" or name.startswith(("b.", "cb", "tb")):
        return "branch"
    if not vector:
        return "integer"
    if name.startswith(("fmla", "fmls", "fmul", "fmadd", "bfm", "sdot")):
        return "multiply"
    if name in ("fdiv", "fsqrt"):
        return "divide"
    return "float" if name.startswith("f") and not name.startswith("fmov") else "vector"


def _throughput(loop: Sequence[_Instruction], core: Pipelines) -> float:
    busy: dict[str, float] = defaultdict(float)
    for instruction in loop:
        use = core.uses[instruction.kind]
        busy[use.pipeline] += use.cycles
    kinds = [cycles / core.pipelines[kind] for kind, cycles in busy.items()]
    return max([len(loop) / core.width, *kinds])


def _run(loop: Sequence[_Instruction], core: Pipelines, turns: int) -> int:
    """Cycles until the last instruction has started."""
    ready: dict[str, int] = {}
    busy: dict[str, list[int]] = {kind: [0] * n for kind, n in core.pipelines.items()}
    started: dict[int, int] = defaultdict(int)  # instructions a cycle
    ends: list[int] = []
    last = 0
    for instruction in list(loop) * turns:
        use = core.uses[instruction.kind]
        earliest = max((ready.get(r, 0) for r in instruction.reads), default=0)
        if not core.window:
            earliest = max(earliest, last)
        elif len(ends) >= core.window:
            earliest = max(earliest, ends[-core.window])
        units = busy[use.pipeline]
        unit = min(range(len(units)), key=units.__getitem__)
        cycle = max(earliest, units[unit])
        while started[cycle] >= core.width or (use.alone and started[cycle]):
            cycle += 1
        units[unit] = cycle + use.cycles
        started[cycle] += core.width if use.alone else 1
        for blocked in range(cycle + 1, cycle + use.cycles if use.alone else 0):
            started[blocked] = core.width
        for register in instruction.writes:
            ready[register] = cycle + use.latency
        if instruction.moved:
            ready[instruction.moved] = cycle + 1
        ends.append(max(cycle + use.latency, ends[-1] if ends else 0))
        last = max(last, cycle)
    return last
