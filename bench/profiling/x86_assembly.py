"""Loops of x86 assembly, as LLVM writes it, and what their instructions are."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

_LABEL = re.compile(r"^([.\w$]+):")
_FUNCTION = re.compile(r"^([A-Za-z_][\w$]*):")
# {vex} may stand before a name.
_INSTRUCTION = re.compile(r"^\s+(?:\{\w+\}\s+)?([a-z]\w*)(?:\s+(.*?))?(?:\s*#.*)?$")
_VECTOR = re.compile(r"%?[xyz]mm\d+|%?tmm\d")
_STACK = re.compile(r"\(%rsp\)")
_BROADCAST = re.compile(r"\{1to\d+\}")


@dataclass(frozen=True, slots=True)
class Instruction:
    """A mnemonic and its operands as text."""

    name: str
    operands: str

    @property
    def is_vector(self) -> bool:
        """Whether it names a vector or tile register."""
        return bool(_VECTOR.search(self.operands))

    @property
    def kind(self) -> str:
        """One of KINDS."""
        name, operands = self.name, self.operands
        if name.startswith("call"):
            return "call"
        if not self.is_vector:
            return "scalar"
        if _STACK.search(operands):
            return "spill"
        if name.startswith("tdp"):
            return "tile product"
        if name.startswith(("vfmadd", "vfmsub", "vfnmadd", "vfnmsub", "vdpbf16", "vpdp")):
            return "fma"
        if name.startswith("tile"):
            return "tile move"
        if "cvt" in name:
            return "conversion"
        if name.startswith(("vbroadcast", "vpbroadcast")):
            return "broadcast"
        if name.startswith(
            ("vperm", "vshuf", "vunpck", "vpunpck", "vinsert", "vextract", "valign")
        ):
            return "shuffle"
        if re.match(r"v?mov|vpmov|vmaskmov|vgather|vscatter|vlddqu", name):
            return "move"
        return "arithmetic"


KINDS = (
    "fma", "tile product", "tile move", "arithmetic", "conversion", "shuffle", "broadcast", "move",
    "spill", "scalar", "call",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Loop:
    """An innermost loop: its function, the label of its top and one turn's instructions."""

    function: str
    label: str
    body: tuple[Instruction, ...]

    def counts(self) -> dict[str, int]:
        """Instructions of each kind, those of none left out."""
        kinds = [i.kind for i in self.body]
        return {k: kinds.count(k) for k in KINDS if k in kinds}

    @property
    def products(self) -> int:
        """FMAs and tile products: what a hot loop is recognised by."""
        return sum(i.kind in ("fma", "tile product") for i in self.body)

    @property
    def broadcast_products(self) -> int:
        """FMAs that read one number from memory for all lanes."""
        return sum(i.kind == "fma" and bool(_BROADCAST.search(i.operands)) for i in self.body)

    @property
    def share(self) -> float:
        """Of the instructions, those that multiply and add."""
        return self.products / len(self.body)

    @property
    def calls(self) -> list[str]:
        """Functions that it calls, such as a scalar expf."""
        return sorted({i.operands for i in self.body if i.kind == "call"})


def innermost_loops(assembly: str) -> list[Loop]:
    """Those without a loop inside, in order. A branch back to a label makes a loop; branches forward
    within it are part of it."""
    found = []
    for function, lines in _functions(assembly):
        places: dict[str, int] = {}
        code: list[Instruction] = []
        spans: list[tuple[int, int, str]] = []
        for line in lines:
            if label := _LABEL.match(line):
                places[label[1]] = len(code)
            elif instruction := _INSTRUCTION.match(line):
                name, operands = instruction[1], instruction[2] or ""
                code.append(Instruction(name, operands))
                if name.startswith("j") and operands in places:
                    spans.append((places[operands], len(code), operands))
        for start, end, label_name in spans:
            inside = any(start <= s and e <= end and (s, e) != (start, end) for s, e, _ in spans)
            if not inside:
                found.append(Loop(function, label_name, tuple(code[start:end])))
    return found


def _functions(assembly: str) -> Iterator[tuple[str, list[str]]]:
    name, lines = "", list[str]()
    for line in assembly.splitlines():
        match = _FUNCTION.match(line)
        if match and not match[1].startswith(("L", ".L")):
            if lines:
                yield name, lines
            name, lines = match[1], []
        else:
            lines.append(line)
    yield name, lines
