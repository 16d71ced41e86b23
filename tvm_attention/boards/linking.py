"""Candidates and the launch function as shared libraries for a board: LLVM's objects, and a linker."""

from __future__ import annotations

import tempfile
from pathlib import Path

from tvm_attention import compiler
from tvm_attention.export.toolchain import Toolchain
from tvm_attention.llvm_ir import write_object
from tvm_attention.schedules import Candidate
from tvm_attention.target import HardwareTarget
from tvm_attention.threads.native import launch_source
from tvm_attention.workload import AttentionWorkload

# Without the C library: what they need of it the process that loads them has, in whatever version the
# board's is.
_LINK = ("-shared", "-nostdlib", "-s", "-lgcc")


def kernel_library(
    workload: AttentionWorkload,
    target: HardwareTarget,
    candidate: Candidate,
    toolchain: Toolchain,
) -> bytes:
    """A candidate, for ``compiler.load_library`` on the board. Raises KernelBuildError if it cannot be
    built."""
    with tempfile.TemporaryDirectory(prefix="tvm_attention") as folder:
        object_file = Path(folder, "kernel.o")
        module = compiler.build_module(workload, target, candidate)
        module.mod.write_to_file(str(object_file), "o")
        return _linked(object_file, toolchain)


def launch_library(target: HardwareTarget, toolchain: Toolchain) -> bytes:
    """The launch function of parallel loops, for ``threads.native.load_launch`` on the board."""
    with tempfile.TemporaryDirectory(prefix="tvm_attention") as folder:
        object_file = Path(folder, "launch.o")
        triple = {k: v for k, v in target.llvm().items() if k in ("kind", "mtriple")}
        write_object("launch function", launch_source(toolchain.architecture), triple, object_file)
        return _linked(object_file, toolchain)


def _linked(object_file: Path, toolchain: Toolchain) -> bytes:
    library = object_file.with_suffix(".so")
    toolchain.link(library, [object_file], *_LINK)
    return library.read_bytes()
