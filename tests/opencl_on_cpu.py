"""Another stand-in for a GPU: the OpenCL source that TVM makes of the same scheduled module, on PoCL. Nothing
of it is ours but what replaces the functions of CUDA headers (opencl_on_cpu.h)."""

from __future__ import annotations

import atexit
import ctypes
import os
import re
import shutil
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pyopencl
from cuda_on_cpu import OnCPU, extents

from tvm_attention.cuda.parameters import Parameters
from tvm_attention.device_code import DeviceFunction
from tvm_attention.lowering.device import lower_device
from tvm_attention.lowering.device_source import generated
from tvm_attention.schedules import Candidate, cuda
from tvm_attention.schedules.cuda_fused import tiles_of
from tvm_attention.schedules.cuda_space import kernel_of
from tvm_attention.target import named_target
from tvm_attention.workload import AttentionWorkload

TARGET = {
    "kind": "opencl", "max_threads_per_block": 1024, "max_shared_memory_per_block": 1 << 18,
    "thread_warp_size": 1,
}  # fmt: skip
_HEADER = Path(__file__).with_name("opencl_on_cpu.h")
_SHARED = re.compile(r"uchar buf_dyn_shmem_ptr\[(\d+)\];")
_SHOWN = 1 << 14  # weights of a block of threads, which its warps show each other
_REGISTERS = re.compile(r"float (\w+_local_ptr)\[(\d+)\];")


@cache
def source(workload: AttentionWorkload, candidate: Candidate) -> str:
    """OpenCL source of a candidate."""
    w = kernel_of(workload)
    schedule = cuda.build(w, cuda.machine_parameters(named_target("cuda-sm_80")), candidate)
    func = lower_device(schedule.mod["main"], w, tiles_of(w, candidate))
    return generated(func, TARGET, "attention")[0]


def whole(text: str) -> str:
    """The source with what it needs before it. Memory that a launch asks for on a GPU is declared here; it
    and registers hold NaN at first."""
    text = re.sub(r"\((\w+) ?\*\)buf_dyn_shmem_ptr", r"(__local \1*)buf_dyn_shmem_ptr", text)
    text = re.sub(r"(start_copy|clear)<(\d+)>", r"\1_\2", text)
    text = re.sub(r"multiply_rows<ushort, ([^>]*)>\(", r"multiply_rows(\1, ", text)
    text = re.sub(r"multiply_weights<ushort, ([^>]*)>\(", r"multiply_weights(shown, \1, ", text)

    def shared(found: re.Match[str]) -> str:
        return (
            f"__local uchar buf_dyn_shmem_ptr[{found[1]}] __attribute__((aligned(64)));\n"
            f"  __local float shown[{_SHOWN}];\n"
            f"  if (get_local_id(0) + get_local_id(1) == 0)\n"
            f"    for (int i = 0; i < {found[1]}; ++i) buf_dyn_shmem_ptr[i] = 0xFF;\n"
            f"  barrier(CLK_LOCAL_MEM_FENCE);"
        )

    def registers(found: re.Match[str]) -> str:
        return f"float {found[1]}[{found[2]}] = {{{', '.join(['NAN'] * int(found[2]))}}};"

    return _HEADER.read_text() + _REGISTERS.sub(registers, _SHARED.sub(shared, text))


@cache
def queue() -> Any:
    """PoCL's processor. What it compiles is kept until the process ends."""
    folder = tempfile.mkdtemp(prefix="tvm_attention_test")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    os.environ["POCL_CACHE_DIR"] = folder
    platform = next(p for p in pyopencl.get_platforms() if "Portable" in p.name)
    return pyopencl.CommandQueue(pyopencl.Context(platform.get_devices()))


@cache
def program(text: str) -> Any:
    return pyopencl.Program(queue().context, whole(text)).build()


class OnPoCL(OnCPU):
    """Functions loaded on PoCL; the source is OpenCL's."""

    def launch(
        self, function: DeviceFunction, blocks: int, parameters: Parameters, stream: int
    ) -> None:
        flags, back, given = pyopencl.mem_flags, [], []
        for value in parameters.values:
            if not isinstance(value, ctypes.c_void_p):
                given.append(np.frombuffer(bytes(value), type(value))[0])
                continue
            address = int(value.value or 0)
            memory = (ctypes.c_char * (extents[address] - address)).from_address(address)
            host = np.frombuffer(memory, np.uint8)
            how = flags.READ_WRITE | flags.COPY_HOST_PTR
            buffer = pyopencl.Buffer(queue().context, how, hostbuf=host)
            given.append(buffer)
            back.append((host, buffer))
        x, y = function.threads
        kernel = pyopencl.Kernel(program(self.code.source), function.name)
        kernel(queue(), (blocks * x, y), (x, y), *given)
        for host, buffer in back:
            pyopencl.enqueue_copy(queue(), host, buffer)
        queue().finish()
