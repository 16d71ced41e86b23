"""python bench/profiling/sample.py bert-512 --seconds 5: where a kernel spends its time, sampled.

The machine code is read from the process's own memory and disassembled; every instruction gets its samples,
and stretches of hot ones are listed with what they consist of. A sample is charged to the instruction that
waits, which often is the one behind the slow one.
"""

from __future__ import annotations

import ctypes
import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent))

from rich.table import Table

from bench.command import PROGRAM
from bench.profiling.sampler import Mapping, executable_memory, sampled
from bench.profiling.subject import subject_of, subject_parser
from bench.profiling.x86_assembly import Instruction
from tvm_attention.commands.arguments import whole_number
from tvm_attention.commands.ending import ended
from tvm_attention.commands.output import console

GAP = 25  # instructions without a sample that end a stretch
MARGIN = 2048  # bytes disassembled before and behind the samples
_LINE = re.compile(r"^\s*([0-9a-f]+):\t(.*)$")


@dataclass(frozen=True, slots=True)
class Sampled:
    """An instruction as text, with its samples."""

    address: int
    text: str
    samples: int


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit status 2 for a workload or candidate that there is not, or without cc."""
    parser = subject_parser("sample", __doc__)
    parser.add_argument("--most", type=whole_number(1, 1000), default=14, help="stretches shown")
    parser.add_argument(
        "--listing", type=Path, metavar="FILE", help="every instruction with samples"
    )
    options = parser.parse_args(arguments)

    def perform() -> int:
        subject = subject_of(options)
        found = sampled(subject.call(), options.seconds)
        inside = kernel_memory(found)
        code = disassembled(found, inside) if inside else []
        if options.listing:
            lines = (f"{x.samples:7d}  {x.address:x}  {x.text}\n" for x in code)
            options.listing.write_text("".join(lines), encoding="utf-8")
        _print(str(subject), found, code, options.most)
        return 0

    return ended(perform, PROGRAM)


def kernel_memory(found: Counter[int]) -> Mapping | None:
    """Of the stretches of memory that no file holds, the one with the most samples."""
    nameless = [m for m in executable_memory() if not m.name]
    counts = {m: sum(n for a, n in found.items() if m.start <= a < m.end) for m in nameless}
    best = max(nameless, key=lambda m: counts[m], default=None)
    return best if best is not None and counts[best] else None


def disassembled(found: Counter[int], memory: Mapping) -> list[Sampled]:
    """The instructions around the samples, by objdump."""
    within = [a for a in found if memory.start <= a < memory.end]
    # Code begins at a function's start; from elsewhere the first instructions may be read wrong.
    start = max(memory.start, min(within) - MARGIN)
    end = min(memory.end, max(within) + MARGIN)
    with tempfile.NamedTemporaryFile(suffix=".bin") as file:
        file.write(ctypes.string_at(start, end - start))
        file.flush()
        command = [
            "objdump", "-D", "-b", "binary", "-m", "i386:x86-64", "--no-show-raw-insn",
            f"--adjust-vma={start}", file.name,
        ]  # fmt: skip
        text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return [
        Sampled(int(m[1], 16), m[2].strip(), found.get(int(m[1], 16), 0))
        for m in map(_LINE.match, text.splitlines())
        if m
    ]


def stretches(code: Sequence[Sampled]) -> list[list[Sampled]]:
    """Runs of instructions with samples, those with the most first."""
    found: list[list[Sampled]] = []
    quiet = GAP + 1
    for place, one in enumerate(code):
        if one.samples:
            if quiet > GAP:
                found.append([])
            else:
                found[-1].extend(code[place - quiet : place])
            found[-1].append(one)
            quiet = 0
        else:
            quiet += 1
    return sorted(found, key=lambda s: -sum(x.samples for x in s))


def kinds(stretch: Sequence[Sampled]) -> Counter[str]:
    """How many instructions of each kind."""
    parts = (x.text.split(maxsplit=1) for x in stretch)
    return Counter(Instruction(p[0], p[1] if len(p) > 1 else "").kind for p in parts if p)


def _elsewhere(found: Counter[int], code: Sequence[Sampled]) -> Iterator[tuple[str, int]]:
    """Samples outside the kernel, by the file that the code is from."""
    known = {x.address for x in code}
    counts: Counter[str] = Counter()
    memory = executable_memory()
    for address, count in found.items():
        if address not in known:
            name = next((m.name for m in memory if m.start <= address < m.end), "")
            counts[Path(name).name or "other generated code"] += count
    yield from counts.most_common(5)


def _print(title: str, found: Counter[int], code: Sequence[Sampled], most: int) -> None:
    whole = max(1, sum(found.values()))
    table = Table("share", "instructions", "hottest", "kinds", title=title)
    for stretch in stretches(code)[:most]:
        samples = sum(x.samples for x in stretch)
        hottest = max(stretch, key=lambda x: x.samples)
        said = ", ".join(f"{n} {k}" for k, n in kinds(stretch).most_common(5))
        table.add_row(
            f"{samples / whole:.1%}", str(len(stretch)),
            f"{hottest.text} ({hottest.samples / whole:.1%})", said,
        )  # fmt: skip
    out = console()
    out.print(table)
    inside = sum(x.samples for x in code)
    others = ", ".join(f"{n} {c / whole:.1%}" for n, c in _elsewhere(found, code))
    out.print(
        f"{whole} samples, {inside / whole:.1%} in the kernel; elsewhere: {others or 'none'}",
        highlight=False, markup=False,
    )  # fmt: skip


if __name__ == "__main__":
    raise SystemExit(main())
