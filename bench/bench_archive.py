"""python bench/bench_archive.py --json FILE: exported archives in figures.

Sizes of libraries and of a static ARM program; from a C program's start to its first result; what a call
costs beside its kernel; and kernels of an archive timed in turns with the Python path's, in one process.
``--folder`` keeps what was exported: a second run then measures at once.
"""

from __future__ import annotations

import argparse
import ctypes
import datetime
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import numpy as np

import tvm_attention as ta
from bench import machine, results
from bench.command import PROGRAM
from tvm_attention.archive_kernel import problem_of
from tvm_attention.arrays import NumPyArrays
from tvm_attention.call import Call
from tvm_attention.commands.arguments import OneLineParser, positive
from tvm_attention.commands.bar import stepped
from tvm_attention.commands.ending import ended
from tvm_attention.commands.output import console
from tvm_attention.export.archive import Archive
from tvm_attention.export.archive.interface import Arrays
from tvm_attention.export.building import export
from tvm_attention.export.linking import SHARED, STATIC
from tvm_attention.export.toolchain import find_toolchain
from tvm_attention.interleaved import Contender, interleave
from tvm_attention.operands import geometry
from tvm_attention.options import Options
from tvm_attention.prepared import workspace
from tvm_attention.random_calls import random_inputs
from tvm_attention.suites import suite
from tvm_attention.workload import AttentionWorkload, default_scale

HERE = Path(__file__).resolve().parent
PLAIN = AttentionWorkload(head_dim=64)
TIMED = ("bert-128", "bert-384", "causal-1024", "sd-cross-77", "decode-2048-gqa4")
TARGETS = ("native", "x86-64-v4", "x86-64-v3")
STARTS = 25  # of the C program


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print and, if asked to, write the results; 2 for a file that cannot be written."""
    parser = OneLineParser(prog="bench_archive", description=__doc__, allow_abbrev=False)
    parser.add_argument("--seconds", type=positive, default=1.0, help="of each comparison")
    parser.add_argument("--folder", type=Path, metavar="DIR", help="export to here, once")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results here")
    options = parser.parse_args(arguments)
    return ended(lambda: _perform(options), PROGRAM)


def _perform(options: argparse.Namespace) -> int:
    if options.json:
        results.require_writable(options.json)
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.folder or Path(temporary)
        _export_all(folder)
        figures = _sizes(folder) | _c_program(folder / "two")
        rows = list(_speeds(Archive.open(folder / "timed"), options.seconds))
    result = {
        "machine": machine.machine(), "packages": machine.packages(), "library": machine.library(),
        "date": datetime.date.today().isoformat(), "figures": figures, "speed": rows,
    }  # fmt: skip
    text = json.dumps({"figures": figures, "speed": rows}, indent=1)
    try:
        console().print_json(text)
    finally:
        if options.json:
            results.write(result, options.json)
    return 0


def _export_all(folder: Path) -> None:
    """Two levels and two cores of one workload class; the timed workloads."""
    workloads = [suite("core")[name] for name in TIMED]
    wanted: dict[str, Callable[[Path], object]] = {
        "two": lambda f: export([PLAIN], ["x86-64-v3", "x86-64-v4", "cortex-a72", "cortex-a53"], f),
        "timed": lambda f: export(workloads, TARGETS, f),
    }
    for name, make in wanted.items():
        if not (folder / name / "include").exists():
            make(folder / name)


def _sizes(folder: Path) -> dict[str, Any]:
    """Bytes. The ARM program is the example, stripped, with libc in it."""
    two, program = folder / "two", folder / "arm_program"
    example = HERE.parent / "examples" / "c" / "attention.c"
    find_toolchain("aarch64").link(
        program, [example, two / "aarch64" / STATIC], f"-I{two / 'include'}", "-std=c99", "-O2", "-static",
        "-s", "-pthread", "-lm",
    )  # fmt: skip
    return {
        "x86_64 shared library, 2 levels": (two / "x86_64" / SHARED).stat().st_size,
        "aarch64 shared library, 2 cores": (two / "aarch64" / SHARED).stat().st_size,
        "aarch64 static program": program.stat().st_size,
    }


def _c_program(two: Path) -> dict[str, Any]:
    """Medians of several starts of bench/archive_timing.c, linked with the shared library."""
    program = two / "archive_timing"
    find_toolchain("x86_64").link(
        program, [HERE / "archive_timing.c", two / "x86_64" / SHARED], f"-I{two / 'include'}", "-O2",
        f"-Wl,-rpath,{two / 'x86_64'}",
    )  # fmt: skip
    found = []
    for _ in range(STARTS):
        command = [str(program), str(time.clock_gettime_ns(time.CLOCK_MONOTONIC))]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        found.append([float(x) for x in done.stdout.split()])
    first, run, prepare = zip(*found, strict=True)
    return {
        "ms from start to first result": statistics.median(first),
        "ms from start to first result, slowest": max(first),
        "us of the smallest call": statistics.median(run),
        "us of tva_prepare": statistics.median(prepare),
    }


def _speeds(archive: Archive, seconds: float) -> Iterator[dict[str, Any]]:
    cases = [
        (name, target, threads)
        for target in TARGETS
        for threads in (1, 2)
        for name in TIMED
        if threads == 1 or target == "native"
    ]
    for name, target, threads in stepped(cases, lambda case: f"{case[0]} {case[1]}"):
        workload = suite("core")[name]
        ours, exported, source, kernel = _contenders(archive, workload, target, threads)
        rounds = interleave([ours, exported], 2 * seconds, least=5)
        yield {
            "workload": name, "target": target, "threads": threads, "python": source, "kernel": kernel,
            "seconds": rounds.time("archive").to_dict(),
            "ratio": rounds.ratio("archive", "python").to_dict(),
        }  # fmt: skip


def _contenders(
    archive: Archive, workload: AttentionWorkload, target: str, threads: int
) -> tuple[Contender, Contender, str, str]:
    """The kernel that ``load`` gives, and the archive's, each with all but its addresses prepared."""
    kind, inputs = NumPyArrays(), random_inputs(workload, 0)
    sizes = geometry(*(x.shape for x in inputs), enable_gqa=True)
    causal = None if workload.causal is None else str(workload.causal)
    options = Options(default_scale(workload.head_dim), causal=causal)
    call = Call.of(sizes, options, workload.dtype)
    tensors = (*inputs, np.empty(sizes.out_shape, inputs[0].dtype))
    strides = tuple(kind.strides(x) for x in tensors)
    loaded = ta.load(workload, None if target == "native" else target, threads)
    prepared = loaded.prepare(kind, call, strides)
    addresses = [kind.address(x) for x in tensors]
    problem = problem_of(call, workload, list(strides))
    archive.set_threads(problem, threads)
    name = ctypes.create_string_buffer(target_name(target).encode())
    problem.target = ctypes.addressof(name)
    exported, size = archive.prepare(problem)
    # One for both: of two, the larger may lie in larger pages.
    place, kept = workspace.grow(max(size, prepared.workspace_bytes))
    arrays, tva_run = Arrays(*addresses), archive.library.tva_run

    def call_archive() -> object:
        return tva_run(exported, arrays, place, size), kept, tensors

    first = Contender("python", lambda: prepared.run(*addresses), "own pool")
    return (
        first, Contender("archive", call_archive, "archive"), str(loaded.source),
        archive.kernel_name(exported),
    )  # fmt: skip


def target_name(target: str) -> str:
    """The name of a target in the archive's manifest."""
    return ta.detect_target().name if target == "native" else target


if __name__ == "__main__":
    raise SystemExit(main())
