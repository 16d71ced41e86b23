"""The launch function: LLVM IR texts in this folder, compiled into the process by TVM itself."""

from __future__ import annotations

import ctypes
import platform
import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

from tvm_attention.errors import UnsupportedError
from tvm_attention.llvm_ir import load_interface, load_interface_library

_NAME = "launch function of parallel loops"
_PROCESSORS = {"x86_64": "x86_64", "aarch64": "aarch64", "arm64": "aarch64"}


@dataclass(frozen=True, slots=True)
class NativeLaunch:
    """The compiled code: the address of the launch function (its C signature is in launch.ll), and of
    that for loops whose number of iterations is the first thing that they refer to, a variable;
    ``select(parallel, max_threads, limit)``, which takes the addresses of GOMP_parallel (None: our
    own pool) and omp_get_max_threads (None: there is no OpenMP) and the most threads to use (0,
    with OpenMP only: no limit of our own); ``forget_workers()``, for a forked child."""

    address: int
    counted: int
    select: Callable[[int | None, int | None, int], None]
    forget_workers: Callable[[], None]


def compile_launch() -> NativeLaunch:
    """Compiles the launch function, in some 30 ms. Its code stays until the process ends.

    Raises UnsupportedError on another system than Linux on x86-64 or aarch64, KernelBuildError if
    TVM cannot compile.
    """
    processor = _PROCESSORS.get(platform.machine())
    if processor is None or not sys.platform.startswith("linux"):
        raise UnsupportedError(
            f"expected Linux on x86-64 or aarch64, got {platform.system()} on "
            f"{platform.machine() or 'an unknown processor'}; kernels do not run here"
        )
    # Sleeping workers and bound kernels refer to this code, which is never unloaded.
    return _native(load_interface(_NAME, launch_source(processor)))


def load_launch(library: Path) -> NativeLaunch:
    """The launch function from a shared library of it that another machine compiled for this one.

    Raises KernelBuildError if it cannot be loaded.
    """
    return _native(load_interface_library(_NAME, library))


def _native(interface: int) -> NativeLaunch:
    functions = (ctypes.c_void_p * 4).from_address(interface)
    address, select, forget, counted = (p or 0 for p in functions)
    signature = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int32)
    return NativeLaunch(address, counted, signature(select), ctypes.CFUNCTYPE(None)(forget))


def launch_source(processor: str) -> str:
    """The LLVM IR of the launch function for "x86_64" or "aarch64", less the module's header."""
    folder = files("tvm_attention.threads")
    parts = (processor, "system", "launch", "pool", "workers")
    return "\n".join(folder.joinpath(f"{part}.ll").read_text() for part in parts)
