"""``tvm-attention export``: kernels for programs with no Python and no TVM."""

from __future__ import annotations

import argparse
from pathlib import Path

from tvm_attention.commands.arguments import Commands, add_command, add_json
from tvm_attention.commands.bar import bar
from tvm_attention.commands.ending import OK
from tvm_attention.commands.output import console, counted, print_json, say, size_text
from tvm_attention.cuda.export import FOLDER, ExportedCode, export_cuda
from tvm_attention.export.building import Exported, export
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
        "is this machine; cuda-sm_87 and others write cubin, PTX and source with a manifest of launches; "
        "riscv64 and wasm32 are experimental",
    )
    parser.add_argument(
        "-o", "--output", metavar="DIR", type=Path, required=True, help="the folder to write to"
    )
    parser.add_argument(
        "--compiler",
        metavar="ARCHITECTURE=COMMAND",
        action="append",
        default=[],
        help="the C compiler that links for x86_64, aarch64, riscv64 or wasm32, where it is not in its "
        "usual place",
    )
    add_json(parser)


def run(options: argparse.Namespace) -> int:
    """Builds the archives and says what they hold."""
    if options.workload is None:
        workloads = list(suite(options.suite).values())
    else:
        workloads = [AttentionWorkload.from_text(text) for text in options.workload]
    targets = [name for name in options.targets.split(",") if name.strip()]
    compilers = parsed_compilers(options.compiler)
    gpus = [name for name in targets if name.strip().lower().startswith("cuda-")]
    processors = [name for name in targets if name not in gpus]
    archives: tuple[Exported, ...] = ()
    device: tuple[ExportedCode, ...] = ()
    with bar(len(workloads) * len(targets)) as advance:
        if gpus:
            device = export_cuda(workloads, gpus, options.output, progress=advance)
        if processors or not gpus:
            archives = export(
                workloads, processors, options.output, compilers=compilers, progress=advance
            )
    place = options.output / FOLDER
    if options.json:
        described = [_to_dict(archive) for archive in archives]
        kernels = [{"name": k.name, "target": k.target.name} for k in device]
        gpu = {"folder": str(place), "kernels": kernels} if device else None
        print_json({"archives": described} | ({"cuda": gpu} if gpu else {}))
        return OK
    out = console()
    for code in device:
        say(out, f"{code.target.name}: {code.candidate}")
    if device:
        say(out, f"{place}: {counted(len(device), 'kernel')} for GPUs", style="bold")
    for archive in archives:
        for kernel in archive.kernels:
            say(out, f"{kernel.target.name}: {kernel.source}")
        sizes = ", ".join(f"{name} {size_text(size)}" for name, size in _sizes(archive).items())
        count = counted(len(archive.kernels), "kernel")
        say(out, f"{archive.folder}: {count}; {sizes}", style="bold")
    return OK


def _sizes(archive: Exported) -> dict[str, int]:
    return {path.name: path.stat().st_size for path in archive.files.values()}


def _to_dict(archive: Exported) -> dict[str, object]:
    kernels = [
        {
            "name": kernel.name,
            "target": kernel.target.name,
            "workload": kernel.workload.to_dict(),
            "source": str(kernel.source),
        }
        for kernel in archive.kernels
    ]
    return {
        "architecture": archive.architecture,
        "folder": str(archive.folder),
        "bytes": _sizes(archive),
        "kernels": kernels,
    }
