"""The innermost loops of a kernel's machine code, from the disassembly of its object file."""

from __future__ import annotations

import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

_LINE = re.compile(r"^\s*([0-9a-f]+):\t(\S+)(?:\t(.*))?$")
_BRANCH = re.compile(r"^(b|b\.\w+|cbn?z|tbn?z)$")
_VECTOR = re.compile(r"(^|[\s{,\[])(v\d+\.|[qds]\d+\b)")
_LOADS = ("ldr", "ldp", "ldur", "ld1", "ld1r", "ld2", "ld4")


@dataclass(frozen=True)
class Loop:
    """Instructions of one turn of an innermost loop: those that use vector registers, and of these the
    fused multiply-adds and the loads."""

    start: int
    vector: int
    fmla: int
    loads: int


def hot_loops(path: Path, least_fmla: int = 8, multiply_add: str = "fmla") -> list[Loop]:
    """Loops without a loop or a branch inside that hold at least so many multiply-adds."""
    code = _disassembled(path)
    place = {address: n for n, (address, _, _) in enumerate(code)}
    loops = []
    for end, (address, name, operands) in enumerate(code):
        target = re.search(r"([0-9a-f]+) <", operands) if _BRANCH.match(name) else None
        if target is None or int(target[1], 16) >= address:
            continue
        body = code[place.get(int(target[1], 16), end) : end]
        if any(_BRANCH.match(name) for _, name, _ in body):
            continue
        vector = [name for _, name, operands in body if _VECTOR.search(operands)]
        fmla = vector.count(multiply_add)
        if fmla >= least_fmla:
            loops.append(Loop(body[0][0], len(vector), fmla, sum(n in _LOADS for n in vector)))
    return loops


def instructions(path: Path) -> list[tuple[str, str]]:
    """(name, operands) of all instructions of an object file."""
    return [(name, operands) for _, name, operands in _disassembled(path)]


def _disassembled(path: Path) -> list[tuple[int, str, str]]:
    """(address, name, operands) of each instruction."""
    text = subprocess.run(
        ["aarch64-linux-gnu-objdump", "-d", "--no-show-raw-insn", str(path)],
        capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    return [(int(m[1], 16), m[2], m[3] or "") for m in map(_LINE.match, text.splitlines()) if m]
