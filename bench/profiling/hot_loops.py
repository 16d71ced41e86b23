"""python bench/profiling/hot_loops.py bert-512: what the innermost loops of a kernel consist of.

Counted in the assembly that LLVM makes: multiply-adds and their share, broadcasts folded into them, vector
registers spilled to the stack, calls of scalar functions such as expf.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent))

from rich.table import Table

from bench.command import PROGRAM
from bench.profiling.subject import Subject, subject_of, subject_parser
from bench.profiling.x86_assembly import KINDS, Loop, innermost_loops
from tvm_attention.commands.arguments import whole_number
from tvm_attention.commands.ending import ended
from tvm_attention.commands.output import console
from tvm_attention.compiler import build_module
from tvm_attention.errors import UnsupportedError


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit status 2 for a workload or candidate that there is not."""
    parser = subject_parser("hot_loops", __doc__)
    parser.add_argument("--most", type=whole_number(1, 1000), default=12, help="loops shown")
    parser.add_argument("--listing", type=Path, metavar="FILE", help="write the assembly here")
    options = parser.parse_args(arguments)

    def perform() -> int:
        subject = subject_of(options)
        text = assembly(subject)
        if options.listing:
            options.listing.write_text(text, encoding="utf-8")
        loops = sorted((x for x in innermost_loops(text) if x.products), key=lambda x: -x.products)
        _print(subject, loops[: options.most])
        return 0

    return ended(perform, PROGRAM)


def assembly(subject: Subject) -> str:
    """Of the kernel and the functions that its threads run. Raises UnsupportedError but for x86."""
    if subject.target.kind != "x86":
        raise UnsupportedError(f"hot_loops: reads x86 assembly, got target {subject.target.name}")
    module = build_module(subject.workload, subject.target, subject.candidate)
    text: str = module.mod.inspect_source("asm")
    return text


def _print(subject: Subject, loops: Sequence[Loop]) -> None:
    shown = [k for k in KINDS if any(k in loop.counts() for loop in loops)]
    table = Table("loop", "all", "products", "with broadcast", *shown, title=str(subject))
    for loop in loops:
        counts = loop.counts()
        table.add_row(
            loop.label, str(len(loop.body)), f"{loop.share:.0%}", str(loop.broadcast_products),
            *(str(counts.get(k, "")) for k in shown),
        )  # fmt: skip
    out = console()
    out.print(table)
    spills = sum(loop.counts().get("spill", 0) for loop in loops)
    calls = sorted({c for loop in loops for c in loop.calls})
    out.print(f"spills in these loops: {spills}; calls: {', '.join(calls) or 'none'}")


if __name__ == "__main__":
    raise SystemExit(main())
