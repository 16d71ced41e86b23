"""Where kernels run: a GPU by way of torch, or what stands in for one in a rehearsal."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from tvm_attention.cuda import compilers
from tvm_attention.cuda.compilers import Compiler
from tvm_attention.cuda.driver import Driver, driver
from tvm_attention.errors import UnsupportedError

GPU = "bench.gpu.place"  # the module with the functions of a GPU: ``place`` and ``compiler``
_FLUSHED_BYTES = 256 << 20  # more than any cache: what is timed reads from memory
_LEAST_FLUSHES = (
    4  # together longer than it takes to start a call: the GPU never waits for the processor
)


class Place(Protocol):
    """A GPU. Times are in seconds of the GPU's own clock."""

    name: str
    arch: str
    driver: Driver
    dispatches: bool  # whether torch knows where its tensors are

    def captured(self, call: Callable[[], object]) -> Callable[[], object]:
        """A call as a graph, which does the same again on the same memory."""

    def other(self, array: NDArray[Any]) -> Any:
        """An array of another library (CuPy) on the GPU; None where it is not there."""

    def host(self, array: Any) -> NDArray[Any]:
        """The inverse of :meth:`other`."""

    def tensor(self, array: NDArray[Any]) -> Any:
        """A torch tensor on the GPU with an array's elements (bfloat16 included) and strides."""

    def array(self, tensor: Any) -> NDArray[Any]:
        """The inverse of :meth:`tensor`; waits for the GPU. 16-bit numbers come as float32."""

    def synchronize(self) -> None:
        """Wait for all work; raises if any of it failed."""

    def seconds(self, calls: Sequence[Callable[[], object]]) -> list[float]:
        """The time of each of some calls, one after the other, each with cold caches."""

    def on_a_stream(self) -> Any:
        """A context in which torch's current stream is a new one, behind the work of the one before."""


class Gpu:
    """The first GPU that torch sees."""

    dispatches = True

    def __init__(self) -> None:
        import torch

        if not torch.cuda.is_available():
            raise UnsupportedError("expected a GPU that torch can use, got none")
        self._torch: Any = torch
        self.name = str(torch.cuda.get_device_name(0))
        self.driver = driver()
        self.arch = self.driver.arch(0)
        self._flushed = torch.empty(_FLUSHED_BYTES, dtype=torch.int8, device="cuda")

    def captured(self, call: Callable[[], object]) -> Callable[[], object]:
        call()  # what is made with a first call is none of the graph's
        self.synchronize()
        graph = self._torch.cuda.CUDAGraph()
        with self._torch.cuda.graph(graph):
            call()
        replay: Callable[[], object] = graph.replay
        return replay

    def other(self, array: NDArray[Any]) -> Any:
        return import_module("cupy").asarray(array) if find_spec("cupy") else None

    def host(self, array: Any) -> NDArray[Any]:
        found: NDArray[Any] = array.get()
        return found

    def tensor(self, array: NDArray[Any]) -> Any:
        return as_torch(self._torch, array).to("cuda")

    def array(self, tensor: Any) -> NDArray[Any]:
        return np.asarray(_readable(self._torch, tensor.cpu()))

    def synchronize(self) -> None:
        self._torch.cuda.synchronize()

    def seconds(self, calls: Sequence[Callable[[], object]]) -> list[float]:
        cuda = self._torch.cuda
        events = [(cuda.Event(enable_timing=True), cuda.Event(enable_timing=True)) for _ in calls]
        for call, (start, end) in zip(calls, events, strict=True):
            for _ in range(_LEAST_FLUSHES):
                self._flushed.zero_()
            start.record()
            call()
            end.record()
        self.synchronize()
        return [start.elapsed_time(end) / 1e3 for start, end in events]

    @contextmanager
    def on_a_stream(self) -> Iterator[None]:
        cuda = self._torch.cuda
        before, stream = cuda.current_stream(), cuda.Stream()
        stream.wait_stream(before)
        with cuda.stream(stream):
            yield
        before.wait_stream(stream)


def place() -> Place:
    """The GPU of this machine. Raises UnsupportedError where there is none."""
    return Gpu()


def compiler() -> Compiler:
    """What compiles for it on this machine, which needs no GPU. Raises KernelBuildError for want of one."""
    return compilers.compiler()


def opened(module: str) -> Place:
    """The place of a module with a function ``place``."""
    found: Place = import_module(module).place()
    return found


def compiler_of(module: str) -> Compiler:
    """The compiler of a module with a function ``compiler``."""
    found: Compiler = import_module(module).compiler()
    return found


def as_torch(torch: Any, array: NDArray[Any]) -> Any:
    """A torch tensor on the processor with an array's elements."""
    if array.dtype.name == "bfloat16":
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)


def _readable(torch: Any, tensor: Any) -> Any:
    return tensor.float() if tensor.dtype in (torch.bfloat16, torch.float16) else tensor
