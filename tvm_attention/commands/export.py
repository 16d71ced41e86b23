"""``tvm-attention export``: kernels for programs with no Python and no TVM."""

from __future__ import annotations

import argparse
from pathlib import Path

from tvm_attention.commands.arguments import Commands, add_command
from tvm_attention.commands.ending import OK
from tvm_attention.commands.output import console, counted, say, size_text
from tvm_attention.cuda.export import FOLDER, export_cuda
from tvm_attention.export.building import SHARED, STATIC, export
from tvm_attention.export.toolchain import parsed_compilers
from tvm_attention.suites import SUITES, suite
from tvm_attention.workload import AttentionWorkload


def add(commands: Commands) -> None:
    """The parser of ``export``."""
    summary = (
        "write kernels that need neither Python nor TVM: C libraries, and machine code for GPUs"
    )
    parser = add_command(commands, "export", summary, run)
    group = parser.add_mutually_exclusive_group(required=True)
    group.add_argument(
        "--workload",
        metavar="FIELDS",
        action="append",
        help="head_dim=64 and AttentionWorkload's other fields, as explain takes them; several times for "
        "several kernels",
    )
    group.add_argument("--suite", choices=SUITES, help="the workloads of a named suite")
    parser.add_argument(
        "--targets",
        metavar="NAMES",
        required=True,
        help="levels and micro-architectures, separated by commas: x86-64-v3,x86-64-v4,cortex-a72; native "
        "is this machine; cuda-sm_87 and others write cubin, PTX and source with a manifest of launches",
    )
    parser.add_argument(
        "-o", "--output", metavar="DIR", type=Path, required=True, help="the folder to write to"
    )
    parser.add_argument(
        "--compiler",
        metavar="ARCHITECTURE=COMMAND",
        action="append",
        default=[],
        help="the C compiler that links for x86_64 or aarch64, where it is not in its usual place",
    )


def run(options: argparse.Namespace) -> int:
    """Builds the archives and says what they hold."""
    if options.workload is None:
        workloads = list(suite(options.suite).values())
    else:
        workloads = [AttentionWorkload.from_text(text) for text in options.workload]
    targets = [name for name in options.targets.split(",") if name.strip()]
    out = console()
    compilers = parsed_compilers(options.compiler)
    gpus = [name for name in targets if name.strip().lower().startswith("cuda-")]
    if gpus:
        written = export_cuda(workloads, gpus, options.output, lambda line: say(out, line))
        place = options.output / FOLDER
        say(out, f"{place}: {counted(len(written), 'kernel')} for GPUs", style="bold")
    targets = [name for name in targets if name not in gpus]
    if gpus and not targets:
        return OK
    for done in export(
        workloads,
        targets,
        options.output,
        compilers=compilers,
        progress=lambda line: say(out, line),
    ):
        sizes = ", ".join(
            f"{name} {size_text((done.folder / name).stat().st_size)}" for name in (SHARED, STATIC)
        )
        say(out, f"{done.folder}: {counted(len(done.kernels), 'kernel')}; {sizes}", style="bold")
    return OK
