"""What a loop's instructions do to memory and which are branches or calls, by their assembly text."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

_STACK = {"x86": re.compile(r"\(%r[sb]p[,)]"), "arm": re.compile(r"\[(sp|x29)\b")}
_ARM_BRANCH = re.compile(r"(b|b\.\w+|cbn?z|tbn?z)\b")
_LABEL = re.compile(r"\.L\w+")
_X86_STORE = re.compile(r"v?(mov|extract|pextr)")
# Markers and directives cost nothing; calls (memset, of a few lines) are left out of a loop's own cycles.
# Vectors of multiply-adds that an instruction stands for: of 2 x 4 by 4 x 2 numbers; of sixteen, by one of a
# query's three digits (tvm_attention.compute.digits); of 2 x 8 by 8 x 2, two digits.
_OF_A_MATRIX, _OF_A_DOT, _OF_PAIRS = 4, 4 / 3, 8 / 3
_CALLS = {"x86": ("call", "ret"), "arm": ("bl ", "blr ", "ret")}


@dataclass(frozen=True)
class Counts:
    """Of one turn of a loop: fused multiply-adds of vectors, and spills, pairs of a store to and a load
    from the stack."""

    instructions: int
    fma: float
    vector: int
    spills: int


def counts(instructions: Sequence[str], kind: str) -> Counts:
    """Counts of some instructions."""
    reloads = stores = vector = 0
    fma = 0.0
    for text in instructions:
        name = text.split()[0]
        is_vector = bool(re.search(r"\b[vq]\d+\b", text) if kind == "arm" else "mm" in text)
        vector += is_vector
        fma += name.startswith(("fmla", "fmls", "vfmadd", "vfnmadd", "bfmlal", "fmlal"))
        fma += _OF_A_MATRIX * name.startswith("bfmmla") + _OF_A_DOT * name.startswith("sdot")
        fma += _OF_PAIRS * name.startswith("smmla")
        if is_vector and _STACK[kind].search(text):
            if _stores(text, name, kind):
                stores += 2 if name == "stp" else 1
            else:
                reloads += 2 if name == "ldp" else 1
    return Counts(len(instructions), fma, vector, min(stores, reloads))


def _stores(text: str, name: str, kind: str) -> bool:
    if kind == "arm":
        return name.startswith("st")
    return text.rstrip().endswith(")") and bool(_X86_STORE.match(name))


def analysable(instructions: Sequence[str], kind: str) -> list[str]:
    """The same without calls, and with branches to one label, as an analyser of a single region reads
    them."""
    kept = []
    for text in instructions:
        if text.startswith(_CALLS[kind]):
            continue
        branch = _ARM_BRANCH.match(text) if kind == "arm" else text.startswith("j")
        kept.append(_LABEL.sub(".Lend", text) if branch else text)
    return kept
