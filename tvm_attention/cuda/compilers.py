"""The compilers of CUDA source: NVRTC, else nvcc."""

from __future__ import annotations

import re
import subprocess
import tempfile
from functools import cache, cached_property
from pathlib import Path
from typing import Protocol

from tvm_attention.cuda import toolkit
from tvm_attention.cuda.machine_code import MachineCode, read_resources
from tvm_attention.cuda.nvrtc import nvrtc
from tvm_attention.errors import KernelBuildError

_SECONDS = 600  # after which a compiler must have failed


class Compiler(Protocol):
    """What makes code for GPUs of CUDA source. ``major``: of its CUDA; drivers of an older one take no
    machine code of it. None where that is not known."""

    name: str

    @property
    def major(self) -> int | None: ...

    def machine_code(self, source: str, arch: str) -> MachineCode:
        """Machine code for a compute capability ("sm_87"). Raises KernelBuildError."""

    def ptx(self, source: str, arch: str) -> str:
        """Code that a driver compiles for the compute capability or any newer one."""


class Nvcc:
    """NVIDIA's compiler driver, which needs a host compiler beside it."""

    def __init__(self, program: Path) -> None:
        self._program, self.name = program, f"nvcc ({program})"

    @cached_property
    def major(self) -> int | None:
        command = [str(self._program), "--version"]
        said = subprocess.run(command, capture_output=True, text=True, check=False).stdout
        found = re.search(r"release (\d+)\.", said)
        return None if found is None else int(found[1])

    def machine_code(self, source: str, arch: str) -> MachineCode:
        cubin, report = self._compiled(source, f"-arch={arch}", "-cubin", "-Xptxas=-v")
        return MachineCode(arch, cubin, read_resources(report))

    def ptx(self, source: str, arch: str) -> str:
        text, _ = self._compiled(source, f"-arch={arch.replace('sm_', 'compute_')}", "-ptx")
        return text.decode()

    def _compiled(self, source: str, *options: str) -> tuple[bytes, str]:
        """(what it writes, what it says)."""
        with tempfile.TemporaryDirectory(prefix="tvm_attention") as folder:
            given, made = Path(folder, "attention.cu"), Path(folder, "attention.out")
            given.write_text(source, encoding="utf-8")
            command = [str(self._program), "-std=c++17", *options, "-o", str(made), str(given)]
            try:
                done = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS)
            except (OSError, subprocess.TimeoutExpired) as error:
                raise KernelBuildError(f"{self.name} could not be run: {error}") from error
            if done.returncode != 0:
                raise KernelBuildError(f"{self.name} could not compile: {done.stderr.strip()}")
            return made.read_bytes(), done.stderr


@cache
def compiler() -> Compiler:
    """The compiler that is there, NVRTC before nvcc.

    Raises KernelBuildError where there is none.
    """
    found = nvrtc()
    if found is not None:
        return found
    program = toolkit.nvcc()
    if program is None:
        raise KernelBuildError(
            "CUDA: expected NVRTC or nvcc to compile kernels, got neither; install the package "
            "nvidia-cuda-nvrtc (pip install 'tvm-attention[cuda]') or NVIDIA's CUDA toolkit"
        )
    return Nvcc(program)


def require_driver(made: Compiler, newest: tuple[int, int], whose: str) -> None:
    """Raises KernelBuildError for a compiler whose machine code a driver for that CUDA does not take."""
    if made.major is not None and made.major > newest[0]:
        raise KernelBuildError(
            f"CUDA: expected a compiler of CUDA {newest[0]}, as the driver of {whose} is for CUDA "
            f"{newest[0]}.{newest[1]}, got {made.name}; pip install 'nvidia-cuda-nvrtc-cu{newest[0]}' in "
            f"its place, or update the driver"
        )
