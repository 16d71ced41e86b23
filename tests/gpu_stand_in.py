"""What stands in for a GPU in a rehearsal of bench/gpu_suite.py: torch tensors that say they are on one, the
stand-in driver (cuda_driver.cc), kernels as libraries for the processor. A module for its option --place."""

from __future__ import annotations

import ctypes
import os
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import cuda_dlpack
import numpy as np
import torch
from cuda_on_cpu import built, library, own_part
from numpy.typing import NDArray
from torch.nn.attention import flex_attention

from bench.gpu.place import as_torch
from tvm_attention.arrays import TorchCudaTensors
from tvm_attention.cuda import driver as driving
from tvm_attention.cuda import numbers
from tvm_attention.cuda.driver import Driver
from tvm_attention.cuda.machine_code import MachineCode, Resources

FOLDER = "GPU_STAND_IN"  # names the folder of libraries, which outlive the process that makes them
DEVICE = 1


class OnGPU(torch.Tensor):
    """A tensor that says it is on a GPU."""

    is_cuda = property(lambda self: True)  # type: ignore[assignment]
    device = property(lambda self: torch.device("cuda", DEVICE))  # type: ignore[assignment]


class StandIn:
    """A GPU of compute capability 8.7. Its streams are numbers, its clock the processor's."""

    name = "a stand-in"
    dispatches = False

    def __init__(self) -> None:
        text = Path(__file__).with_name("cuda_driver.cc").read_text()
        self.driver = Driver(ctypes.CDLL(str(built(text, "driver"))))
        self.arch = self.driver.arch(DEVICE)
        self.current = self.streams = 1

    def captured(self, call: Callable[[], object]) -> Callable[[], object]:
        return call

    def other(self, array: NDArray[Any]) -> Any:
        return cuda_dlpack.Array(array.copy())

    def host(self, array: Any) -> NDArray[Any]:
        found: NDArray[Any] = array.held
        return found

    def tensor(self, array: NDArray[Any]) -> Any:
        return as_torch(torch, array.copy(order="K")).as_subclass(OnGPU)

    def array(self, tensor: Any) -> NDArray[Any]:
        return np.asarray(tensor.as_subclass(torch.Tensor).float())

    def synchronize(self) -> None:
        pass

    def seconds(self, calls: Sequence[Callable[[], object]]) -> list[float]:
        found = []
        for call in calls:
            start = time.perf_counter()
            call()
            found.append(time.perf_counter() - start)
        return found

    @contextmanager
    def on_a_stream(self) -> Iterator[None]:
        before, self.streams = self.current, self.streams + 1
        self.current = self.streams
        yield
        self.current = before


class Compiler:
    """Makes libraries for the processor; says that they take few registers."""

    name = "the stand-in's compiler"
    major = None

    def machine_code(self, source: str, arch: str) -> MachineCode:
        made = library(own_part(source))
        kept = Path(os.environ[FOLDER], f"{made.parent.name}.so")
        if not kept.exists():  # else it may be in use
            shutil.copy(made, kept)
        return MachineCode(arch, str(kept).encode() + b"\0", {"kernel": Resources(32, 0, 0)})

    def ptx(self, source: str, arch: str) -> str:
        raise NotImplementedError


_CHANGED = (
    (torch, "compile"), (torch.cuda, "current_stream"), (torch.cuda, "get_device_capability"),
    (torch.cuda, "is_current_stream_capturing"), (TorchCudaTensors, "uploaded"),
    (flex_attention, "create_block_mask"), (flex_attention, "flex_attention"),
    (driving, "driver"), (numbers, "compiler"),
)  # fmt: skip


@contextmanager
def all_put_back() -> Iterator[None]:
    """What :func:`place` changes, for tests that call it in their own process."""
    before = [(owner, name, getattr(owner, name)) for owner, name in _CHANGED]
    try:
        yield
    finally:
        for owner, name, was in before:
            setattr(owner, name, was)


def place() -> StandIn:
    """The stand-in; torch, in this process, takes it for a GPU from now on."""
    made = StandIn()

    class Stream:
        @property
        def cuda_stream(self) -> int:
            return made.current

    torch.cuda.current_stream = lambda device=None: Stream()
    driving.driver = lambda: made.driver
    numbers.compiler = compiler
    torch.cuda.get_device_capability = lambda device: (8, 7)
    torch.cuda.is_current_stream_capturing = lambda: False
    TorchCudaTensors.uploaded = lambda self, n, like: torch.from_numpy(n).as_subclass(OnGPU)
    torch.compile = lambda function, **_: function
    masked, flexible = flex_attention.create_block_mask, flex_attention.flex_attention
    flex_attention.create_block_mask = lambda *a, device: masked(*a, device="cpu")
    flex_attention.flex_attention = lambda *tensors, **options: flexible(
        *(x.as_subclass(torch.Tensor) for x in tensors), **options
    ).as_subclass(OnGPU)
    return made


def compiler() -> Compiler:
    return Compiler()
