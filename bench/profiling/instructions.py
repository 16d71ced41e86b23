"""python bench/profiling/instructions.py head_dim=64,query_length=128,key_length=128: instructions executed.

callgrind counts every instruction of one call on one thread, exactly and the same each time. It runs no
Python and knows no AVX-512: the workload's kernel for --target (x86-64-v3) is exported into a C program.
Counted are float32 workloads without options but causal.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent))

from rich.table import Table

from bench.command import PROGRAM
from bench.profiling.subject import workload_of
from bench.profiling.x86_assembly import KINDS, Instruction
from tvm_attention.commands.arguments import OneLineParser, whole_number
from tvm_attention.commands.ending import ended
from tvm_attention.commands.output import console
from tvm_attention.errors import InvalidValueError, UnsupportedError
from tvm_attention.export import export
from tvm_attention.work import flops
from tvm_attention.workload import AttentionWorkload

CAUSAL = {"None": 0, "top_left": 1, "bottom_right": 2}
TARGETS = ("x86-64-v2", "x86-64-v3")
_SOURCE = Path(__file__).with_name("counted.c")
_LINE = re.compile(r"^\s*([0-9a-f]+):\t(\S+)\s*(.*)$")
_COST = re.compile(r"^0x([0-9a-f]+) (\d+)$")


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit status 2 for a workload that is not counted, or without valgrind, objdump and cc."""
    parser = OneLineParser(prog="instructions", description=__doc__, allow_abbrev=False)
    parser.add_argument("workload", help="of a suite, or its fields")
    parser.add_argument("--target", default="x86-64-v3", choices=TARGETS)
    parser.add_argument("--most", type=whole_number(1, 1000), default=12, help="instructions shown")
    options = parser.parse_args(arguments)

    def perform() -> int:
        workload = workload_of(options.workload)
        counts, code = counted(workload, options.target)
        _print(workload, options.target, counts, code, options.most)
        return 0

    return ended(perform, PROGRAM)


def counted(
    workload: AttentionWorkload, target: str
) -> tuple[Counter[int], dict[int, Instruction]]:
    """How often each instruction was executed, by address, and what it is.

    Raises UnsupportedError for another workload or where a program is missing."""
    w = workload
    plain = AttentionWorkload(
        head_dim=w.head_dim, value_dim=w.value_dim, batch=w.batch, query_heads=w.query_heads,
        kv_heads=w.kv_heads, query_length=w.query_length, key_length=w.key_length, causal=w.causal,
    )  # fmt: skip
    if w != plain:
        raise UnsupportedError(
            "instructions: expected a float32 workload with no option but causal"
        )
    for program in ("valgrind", "objdump", "cc"):
        if shutil.which(program) is None:
            raise UnsupportedError(
                f"instructions: expected the program {program}, it is not installed"
            )
    with tempfile.TemporaryDirectory(prefix="tvm_attention_counted") as name:
        folder = Path(name)
        program_path = _built(w, target, folder)
        return _costs(w, program_path, folder), _instructions(program_path)


def _built(w: AttentionWorkload, target: str, folder: Path) -> Path:
    export([w], [target], folder / "archive")
    path = folder / "counted"
    command = [
        "cc", "-O2", "-no-pie", str(_SOURCE), f"-I{folder / 'archive' / 'include'}",
        str(folder / "archive" / "x86_64" / "libtvm_attention.a"), "-pthread", "-lm", "-o", str(path),
    ]  # fmt: skip
    subprocess.run(command, check=True)
    return path


def _costs(w: AttentionWorkload, program: Path, folder: Path) -> Counter[int]:
    output = folder / "callgrind.out"
    sizes = (
        w.batch,
        w.query_heads,
        w.kv_heads,
        w.query_length,
        w.key_length,
        w.head_dim,
        w.value_dim,
    )
    command = [
        "valgrind", "--tool=callgrind", f"--callgrind-out-file={output}", "--dump-instr=yes",
        "--dump-line=no", "--compress-pos=no", "--toggle-collect=tva_run", str(program),
        *map(str, sizes), str(CAUSAL[str(w.causal)]),
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise InvalidValueError(
            f"callgrind: {(done.stderr.strip().splitlines() or ['failed'])[-1]}"
        )
    return parsed_costs(output.read_text(encoding="utf-8"))


def parsed_costs(text: str) -> Counter[int]:
    """Executions by address. The line behind a call's is of all that the call did, counted where it was
    done."""
    found: Counter[int] = Counter()
    inclusive = False
    for line in text.splitlines():
        if line.startswith("calls="):
            inclusive = True
        elif cost := _COST.match(line):
            if not inclusive:
                found[int(cost[1], 16)] += int(cost[2])
            inclusive = False
    return found


def _instructions(program: Path) -> dict[int, Instruction]:
    command = ["objdump", "-d", "--no-show-raw-insn", str(program)]
    text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    lines = filter(None, map(_LINE.match, text.splitlines()))
    return {int(m[1], 16): Instruction(m[2], m[3].strip()) for m in lines}


def _print(
    w: AttentionWorkload,
    target: str,
    counts: Counter[int],
    code: dict[int, Instruction],
    most: int,
) -> None:
    whole = sum(counts.values())
    kinds: Counter[str] = Counter()
    for address, count in counts.items():
        kinds[code[address].kind if address in code else "elsewhere"] += count
    table = Table("kind", "executed", "share", title=f"{target}, one call: {whole} instructions")
    for kind in (*KINDS, "elsewhere"):
        if kinds[kind]:
            table.add_row(kind, str(kinds[kind]), f"{kinds[kind] / whole:.1%}")
    out = console()
    out.print(table)
    hottest = Table("executed", "instruction")
    for address, count in counts.most_common(most):
        one = code.get(address, Instruction("?", ""))
        hottest.add_row(str(count), f"{one.name} {one.operands}")
    out.print(hottest)
    out.print(f"{flops(w) / whole:.2f} operations of attention an instruction", highlight=False)


if __name__ == "__main__":
    raise SystemExit(main())
