"""A stand-in for a GPU: CUDA kernels run on the CPU, from the very source that is compiled for a GPU
(cuda_on_cpu.h), by the kernel class that serves GPUs."""

from __future__ import annotations

import atexit
import ctypes
import re
import shutil
import subprocess
import tempfile
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from tvm_attention.arrays import NumPyArrays
from tvm_attention.cuda.building import device_code
from tvm_attention.cuda.kernel import DeviceKernel
from tvm_attention.cuda.launching import Parameters
from tvm_attention.device_code import TENSOR_PRODUCT, DeviceCode, DeviceFunction
from tvm_attention.kernel_source import KernelSource
from tvm_attention.schedules import Candidate
from tvm_attention.schedules.cuda_space import kernel_of
from tvm_attention.target import named_target
from tvm_attention.workload import AttentionWorkload

# Of the threads between two barriers: ascending, descending, shuffled. Without a barrier, one is wrong.
# Copies that go on meanwhile are made as late as may be, at once, either way.
ORDERS = (0, 1, 2)
STREAM = 7
_HEADER = Path(__file__).with_name("cuda_on_cpu.h")
_FAULTS = {
    1: "a barrier that not all threads of a block reach",
    2: "a write beyond the shared memory that was asked for",
    3: "more threads than a block may have",
    4: "copies that were not waited for",
}
# Local variables and registers begin with a pattern that is no sensible number.
_FLAGS = ("-std=c++17", "-O1", "-w", "-ftrivial-auto-var-init=pattern", "-shared", "-fPIC")


@cache
def library(source: str) -> Path:
    """The source compiled, with a function ``run_<kernel>`` for each of its kernels."""
    wrappers = []
    for name, parameters in re.findall(r"__launch_bounds__\([^)]*\) (\w+)\(([^)]*)\) \{", source):
        types = [re.sub(r"(__restrict__)? *\w+$", "", p).strip() for p in parameters.split(",")]
        given = ", ".join(f"*({kind}*)arguments[{i}]" for i, kind in enumerate(types))
        wrappers.append(
            f"static void call_{name}(void** arguments) {{ {name}({given}); }}\n"
            f'extern "C" int run_{name}(void** a, int blocks, int x, int y, int shared, int order) '
            f"{{ return run_grid(call_{name}, a, blocks, x, y, shared, order); }}\n"
        )
    tensor_cores = files("tvm_attention.cuda").joinpath("tensor_cores.cuh").read_text("utf-8")
    before = f'#include "{_HEADER}"\n' + (tensor_cores if TENSOR_PRODUCT in source else "")
    text = before + source + "".join(wrappers)
    return built(text, "kernel")


def built(text: str, name: str) -> Path:
    """C++ as a shared library, which is there until the process ends."""
    folder = Path(tempfile.mkdtemp(prefix="tvm_attention_test"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    source, made = folder / f"{name}.cc", folder / f"{name}.so"
    source.write_text(text)
    subprocess.run(["g++", *_FLAGS, "-o", str(made), str(source)], check=True)
    return made


class OnCPU:
    """Functions loaded on the stand-in; ``order`` is one of ORDERS."""

    multiprocessors = 3

    def __init__(self, code: DeviceCode, order: int = 0) -> None:
        self.code, self._order = code, order
        self.streams: list[int] = []

    def launch(
        self, function: DeviceFunction, blocks: int, parameters: Parameters, stream: int
    ) -> None:
        self.streams.append(stream)
        x, y = function.threads
        run = getattr(ctypes.CDLL(str(library(self.code.source))), f"run_{function.name}")
        fault = run(parameters.array, blocks, x, y, function.shared_bytes, self._order)
        assert fault == 0, f"{function.name}: {_FAULTS[fault]}"


class StandInArrays(NumPyArrays):
    """NumPy arrays as if their memory were a GPU's."""

    name = "arrays of the stand-in"

    def uploaded(self, numbers: NDArray[Any], like: Any) -> Any:
        return numbers.copy()

    def device(self, array: Any) -> int:
        return 0

    def stream(self, array: Any) -> int:
        return STREAM


@cache
def _code(workload: AttentionWorkload, candidate: Candidate, arch: str) -> DeviceCode:
    return device_code(workload, named_target(f"cuda-{arch}"), candidate)


def code_of(workload: AttentionWorkload, candidate: Candidate, arch: str = "sm_80") -> DeviceCode:
    """The code of a candidate, which serves all sizes, both kinds of causality and windows of any width."""
    return _code(kernel_of(workload), candidate, arch)


def kernel_on_cpu(
    workload: AttentionWorkload, candidate: Candidate, order: int = 0, arch: str = "sm_80"
) -> DeviceKernel:
    """A candidate's kernel on the stand-in."""
    source = KernelSource(candidate, None, "test", ())
    return DeviceKernel(workload, source, lambda c, _: OnCPU(code_of(workload, c, arch), order))
