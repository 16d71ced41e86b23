"""How often each loop of optimised LLVM IR turns: scalar evolution, by LLVM's ``opt``.

The decisions of a schedule do not say it: LLVM unrolls, splits and deletes the loops of the schedule.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from tvm_attention.errors import TuningError
from tvm_attention.modelling.evolution import parsed
from tvm_attention.modelling.ir_values import Definitions, Expression, NotKnown, Value, definitions
from tvm_attention.modelling.tools import run

# TVM's LLVM is newer than the tools, whose parser does not know these.
_NEWER = (
    (re.compile(r"captures\([^)]*\)"), ""),
    (re.compile(r"icmp samesign "), "icmp "),
    (re.compile(r"nocreateundeforpoison"), ""),
    # Their arguments are others; what they do has no part in how often a loop turns.
    (re.compile(r"@llvm\.(lifetime|masked)\."), r"@newer.\1."),
)
_COUNT = re.compile(r"Loop %(\S+): backedge-taken count is (.*)")
_FUNCTION = re.compile(r"Determining loop execution counts for: @(\S+)")
_INFO = re.compile(r"Loop info for function '([^']*)'")
_LOOP = re.compile(r" *Loop at depth (\d+) containing: (.*)")
_DEFINITION = re.compile(r"^define .*?@([\w.]+)\(", re.MULTILINE)
_MOST_TURNS = 4096  # of the loops around one whose count varies with theirs: beyond, a sample


@dataclass
class IrLoop:
    """A loop of the IR: how often it turns, on average over its entries; None where that is not known, and
    the loops inside."""

    name: str
    turns: float | None = None
    inner: list[IrLoop] = field(default_factory=list)


def functions(ir: str) -> list[str]:
    """The functions of parallel loops, in the order of the loops."""
    return [name for name in _DEFINITION.findall(ir) if "parallel_lambda" in name]


def ir_loops(ir: str) -> dict[str, list[IrLoop]]:
    """The outermost loops of each function. Raises TuningError if ``opt`` cannot read the IR."""
    for pattern, replacement in _NEWER:
        ir = pattern.sub(replacement, ir)
    done = run(
        "opt",
        "-disable-output",
        # Every expression's evolution as well would take ten times as long.
        "-scalar-evolution-classify-expressions=false",
        "-passes=print<scalar-evolution>,print<loops>",
        text=ir,
    )
    if "Determining loop" not in done.stderr:
        raise TuningError(f"opt: {done.stderr.strip()[:200]}")
    counts, trees = _parsed(done.stderr.splitlines(), definitions(ir))
    for function, loops in trees.items():
        for loop in loops:
            _count(loop, [], {n: c for (f, n), c in counts.items() if f == function})
    return trees


def _count(loop: IrLoop, around: list[tuple[str, Expression]], counts: dict[str, Value]) -> None:
    """Sets the turns of a loop and those inside, given the loops around."""
    known = counts.get(loop.name)
    if known is not None:
        names = {name for name, _ in around}
        if known.loops <= names:
            loop.turns = _mean(known.at, around, known.loops)
            around = [*around, (loop.name, known.at)]
    for inner in loop.inner:
        _count(inner, around, counts)


def _mean(
    expression: Expression, around: list[tuple[str, Expression]], depends: frozenset[str]
) -> float:
    """The turns (one more than the back edge is taken) on average over the turns of the loops around that it
    depends on."""
    around = [a for a in around if a[0] in depends]
    total, entries = 0, 0

    def visit(depth: int, turns: dict[str, int]) -> None:
        nonlocal total, entries
        if depth == len(around):
            total += max(expression(turns), 0) + 1
            entries += 1
            return
        name, count = around[depth]
        some = max(count({**dict.fromkeys((n for n, _ in around), 0), **turns}), 0) + 1
        stride = max(1, some * entries // _MOST_TURNS)
        for turn in range(0, some, stride):
            visit(depth + 1, {**turns, name: turn})

    visit(0, {})
    return total / max(entries, 1)


def _parsed(
    lines: list[str], defined: dict[str, Definitions]
) -> tuple[dict[tuple[str, str], Value], dict[str, list[IrLoop]]]:
    counts: dict[tuple[str, str], Value] = {}
    trees: dict[str, list[IrLoop]] = {}
    function, stack = "", list[IrLoop]()
    for line in lines:
        if found := _FUNCTION.match(line):
            function = found[1]
        elif found := _COUNT.match(line):
            try:
                counts[function, found[1]] = parsed(
                    re.sub(r"^i\d+ ", "", found[2]), defined[function]
                )
            except NotKnown:
                continue
        elif found := _INFO.match(line):
            function, stack = found[1], []
            trees[function] = []
        elif found := _LOOP.match(line):
            del stack[int(found[1]) - 1 :]
            loop = IrLoop(_header(found[2]))
            if stack:
                stack[-1].inner.append(loop)
            else:
                trees[function].insert(0, loop)  # the outermost are printed from the last on
            stack.append(loop)
    return counts, trees


def _header(blocks: str) -> str:
    head = next(b for b in blocks.split(",") if "<header>" in b)
    return head.split("<")[0].lstrip("%").strip('"')
