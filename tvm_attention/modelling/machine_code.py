"""Steady cycles of loops from LLVM's machine-code analyser."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from tvm_attention.errors import TuningError
from tvm_attention.modelling.tools import run

_TRIPLES = {"x86": "x86_64-linux-gnu", "arm": "aarch64-linux-gnu"}
_FEW, _MANY = 4, 20  # turns: their difference is steady, with no start and no end in it
_REPORT = re.compile(r"\n?\[\d+\] Code Region - ")


@dataclass(frozen=True)
class Steady:
    """Of one turn of a loop that runs for long: cycles, and those if nothing waited for a result."""

    cycles: float
    throughput: float
    operations: float


def steady(
    loops: Sequence[Sequence[str]], kind: str, processor: str, features: str = ""
) -> list[Steady]:
    """Each loop's instructions by LLVM's model of a processor. Raises TuningError where the analyser
    cannot read them."""
    few = _cycles(loops, kind, processor, features, _FEW)
    many = _cycles(loops, kind, processor, features, _MANY)
    return [
        Steady((after[0] - before[0]) / (_MANY - _FEW), after[2], after[1] / _MANY)
        for before, after in zip(few, many, strict=True)
    ]


def _cycles(
    loops: Sequence[Sequence[str]], kind: str, processor: str, features: str, turns: int
) -> list[tuple[int, int, float]]:
    """(cycles, micro-operations, cycles by throughput) of so many turns of each loop."""
    lines = []
    for n, loop in enumerate(loops):
        # On ARM too: after "//" the analyser sees no marker, and takes everything for one region.
        lines += [f"# LLVM-MCA-BEGIN r{n}", *loop, f"# LLVM-MCA-END r{n}"]
    done = run(
        "llvm-mca",
        f"-mtriple={_TRIPLES[kind]}",
        f"-mcpu={processor}",
        *([f"-mattr={features}"] if features else []),
        f"-iterations={turns}",
        "-instruction-info=false",
        "-resource-pressure=false",
        text="\n".join(lines) + "\n",
    )
    found: dict[int, tuple[int, int, float]] = {}
    for report in _REPORT.split(done.stdout)[1:]:
        number = re.match(r"r(\d+)", report)
        if number:
            found[int(number[1])] = _figures(report)
    if done.returncode or len(found) != sum(1 for loop in loops if loop):
        raise TuningError(
            f"llvm-mca: {len(loops)} loops, {len(found)} reports: {done.stderr.strip()[:200]}"
        )
    return [found.get(n, (0, 0, 0.0)) for n in range(len(loops))]


def _figures(report: str) -> tuple[int, int, float]:
    patterns = (r"Total Cycles:\s+(\d+)", r"Total uOps:\s+(\d+)", r"Block RThroughput:\s+([\d.]+)")
    values = [m[1] if (m := re.search(p, report)) else "0" for p in patterns]
    return int(values[0]), int(values[1]), float(values[2])
