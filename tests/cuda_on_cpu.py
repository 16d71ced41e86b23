"""A stand-in for a GPU: CUDA kernels run on the CPU, from the very source that is compiled for a GPU
(cuda_on_cpu.h), by the kernel class that serves GPUs."""

from __future__ import annotations

import atexit
import ctypes
import os
import re
import shutil
import struct
import subprocess
import tempfile
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from tvm_attention.arrays import NumPyArrays, memory_range
from tvm_attention.cuda.building import device_code
from tvm_attention.cuda.kernel import DeviceKernel
from tvm_attention.cuda.parameters import Parameters
from tvm_attention.device_code import TENSOR_PRODUCT, WEIGHTED_ROWS, DeviceCode, DeviceFunction
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


def own_part(source: str) -> str:
    """A source without the headers before it, in whose place cuda_on_cpu.h is."""
    for name in ("prelude.cuh", "tensor_cores.cuh", "copies.cuh"):
        source = source.replace(files("tvm_attention.cuda").joinpath(name).read_text("utf-8"), "")
    return source


@cache
def library(source: str) -> Path:
    """The source compiled, with a function ``run_<kernel>`` for each of its kernels, and ``set_mutation``,
    which chooses among its faults (cuda_faults.py)."""
    setter = 'extern "C" void set_mutation(int n) { mutation = n; }\n'
    return built(_whole(_HEADER, source)[0] + setter, "kernel")


@cache
def racing_program(source: str) -> Path:
    """The source compiled for ThreadSanitizer, as a program (cuda_races.h)."""
    text, names = _whole(_HEADER.with_name("cuda_races.h"), source)
    table = ", ".join(f'{{"{name}", run_{name}}}' for name in names)
    text += (
        f"static const Kernel kernels[] = {{{table}}};\n"
        f"int main(int, char** a) {{ return run_file(kernels, {len(names)}, a[1], a[2]); }}\n"
    )
    return built(text, "racing", ("-std=c++17", "-O1", "-w", "-fsanitize=thread"))


def _whole(header: Path, source: str) -> tuple[str, list[str]]:
    """(C++ of a header, the source and wrappers, names of its kernels)."""
    wrappers, names = [], []
    for name, parameters in re.findall(r"__launch_bounds__\([^)]*\) (\w+)\(([^)]*)\) \{", source):
        names.append(name)
        types = [re.sub(r"(__restrict__)? *\w+$", "", p).strip() for p in parameters.split(",")]
        given = ", ".join(f"*({kind}*)arguments[{i}]" for i, kind in enumerate(types))
        wrappers.append(
            f"static void call_{name}(void** arguments) {{ {name}({given}); }}\n"
            f'extern "C" int run_{name}(void** a, int blocks, int x, int y, int shared, int order) '
            f"{{ return run_grid(call_{name}, a, blocks, x, y, shared, order); }}\n"
        )
    tensor_cores = files("tvm_attention.cuda").joinpath("tensor_cores.cuh").read_text("utf-8")
    needed = TENSOR_PRODUCT in source or WEIGHTED_ROWS in source
    before = f'#include "{header}"\n' + (tensor_cores if needed else "")
    return before + source + "".join(wrappers), names


def built(text: str, name: str, flags: tuple[str, ...] = _FLAGS) -> Path:
    """C++ as a shared library, or what else the flags say, which is there until the process ends."""
    folder = Path(tempfile.mkdtemp(prefix="tvm_attention_test"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    source, made = folder / f"{name}.cc", folder / f"{name}.so"
    source.write_text(text)
    subprocess.run(["g++", *flags, "-o", str(made), str(source)], check=True)
    return made


class OnCPU:
    """Functions loaded on the stand-in; ``order`` is one of ORDERS, ``mutation`` a fault's number."""

    multiprocessors = 3

    def __init__(self, code: DeviceCode, order: int = 0, mutation: int = 0) -> None:
        self.code, self._order, self._mutation = code, order, mutation
        self.streams: list[int] = []

    def launch(
        self, function: DeviceFunction, blocks: int, parameters: Parameters, stream: int
    ) -> None:
        self.streams.append(stream)
        x, y = function.threads
        made = ctypes.CDLL(str(library(self.code.source)))
        made.set_mutation(self._mutation)
        run = getattr(made, f"run_{function.name}")
        fault = run(parameters.array, blocks, x, y, function.shared_bytes, self._order)
        assert fault == 0, f"{function.name}: {_FAULTS[fault]}"


class UnderThreadSanitizer(OnCPU):
    """The same in a process that ends at the first race."""

    def launch(
        self, function: DeviceFunction, blocks: int, parameters: Parameters, stream: int
    ) -> None:
        values = parameters.values
        head = (blocks, *function.threads, function.shared_bytes, self._order, self._mutation)
        made = [struct.pack("7i", *head, len(values))]
        sizes = []
        for value in values:
            is_array = isinstance(value, ctypes.c_void_p)
            address = value.value if is_array else ctypes.addressof(value)
            size = extents[address] - address if is_array else ctypes.sizeof(value)
            sizes.append((address, size))
            made += [
                struct.pack("3q", is_array, size, address % 64),
                ctypes.string_at(address, size),
            ]
        with tempfile.NamedTemporaryFile(prefix="tvm_attention_test") as file:
            Path(file.name).write_bytes(b"".join(made))
            program = str(racing_program(self.code.source))
            command = [*_not_put_anywhere(), program, function.name, file.name]
            options = {
                **os.environ,
                "TSAN_OPTIONS": "halt_on_error=1:exitcode=66:report_thread_leaks=0",
            }
            done = subprocess.run(command, capture_output=True, text=True, env=options)
            assert done.returncode != 66, f"{function.name}: a race: {done.stderr[:800]}"
            fault = _FAULTS.get(done.returncode - 10, done.stderr[-400:])
            assert done.returncode == 0, f"{function.name}: {fault}"
            written = Path(file.name).read_bytes()
        at = struct.calcsize("7i")
        for address, size in sizes:
            at += struct.calcsize("3q")
            ctypes.memmove(address, written[at : at + size], size)
            at += size


@cache
def _not_put_anywhere() -> tuple[str, ...]:
    """Before a command: ThreadSanitizer's older versions know no memory but where programs lie of old. Some
    containers do not let them; newer versions see to it themselves."""
    command = ("setarch", "-R")
    allowed = subprocess.run([*command, "true"], capture_output=True).returncode == 0
    return command if allowed else ()


extents: dict[int, int] = {}  # of arrays that kernels were given: their ends by their addresses


class StandInArrays(NumPyArrays):
    """NumPy arrays as if their memory were a GPU's."""

    name = "arrays of the stand-in"

    def uploaded(self, numbers: NDArray[Any], like: Any) -> Any:
        return numbers.copy()

    def address(self, array: Any) -> int:
        start = super().address(array)
        extents[start] = memory_range(NumPyArrays(), array)[1]
        return start

    def device(self, array: Any) -> int:
        return 0

    def stream(self, array: Any) -> int:
        return STREAM

    def captures(self, array: Any) -> bool:
        return False


@cache
def _code(workload: AttentionWorkload, candidate: Candidate, arch: str) -> DeviceCode:
    return device_code(workload, named_target(f"cuda-{arch}"), candidate)


def code_of(workload: AttentionWorkload, candidate: Candidate, arch: str = "sm_80") -> DeviceCode:
    """The code of a candidate, which serves all sizes, both kinds of causality and windows of any width."""
    return _code(kernel_of(workload), candidate, arch)


loaded: type[OnCPU] = OnCPU  # what runs kernels
mutation = 0  # the fault that is there


def kernel_on_cpu(
    workload: AttentionWorkload, candidate: Candidate, order: int = 0, arch: str = "sm_80"
) -> DeviceKernel:
    """A candidate's kernel on the stand-in."""
    source = KernelSource(candidate, None, "test", ())
    return DeviceKernel(
        workload, source, lambda c, _: loaded(code_of(workload, c, arch), order, mutation)
    )
