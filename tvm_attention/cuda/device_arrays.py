"""Arrays in a GPU's memory that this library looks after itself, by the driver alone."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tvm_attention.arrays import NumPyArrays
from tvm_attention.arrays.kind import Shape, mixed_kinds, type_name
from tvm_attention.cuda import driver as driving
from tvm_attention.cuda.memory import DeviceMemory, Shadow, shadow
from tvm_attention.dtypes import ELEMENT_BYTES
from tvm_attention.errors import UnsupportedError


class DeviceArrays(NumPyArrays):
    """Those of one GPU, each stood for by a :class:`Shadow`; work on them goes to one stream."""

    name = "arrays on a GPU"

    def __init__(self, device: int, stream: int) -> None:
        self._device, self._stream = device, stream

    def opened(self, name: str, array: Any) -> Any:
        if isinstance(array, Shadow):
            return array
        raise mixed_kinds(name, self.name, array)

    def dense(self, array: Any) -> Any:
        raise UnsupportedError(
            f"expected an array on a GPU whose last axis is dense, got strides {self.strides(array)} of "
            f"shape {array.shape}; make it contiguous first"
        )

    def expanded(self, array: Any, shape: Shape) -> Any:
        return np.broadcast_to(array, shape, subok=True)

    def empty(self, shape: Shape, like: Any, dtype: str | None = None) -> Any:
        name = self.dtype(like) if dtype is None else dtype
        size = int(np.prod(shape)) * ELEMENT_BYTES[name]
        memory = DeviceMemory(driving.driver(), self._device, max(size, 1), self._stream)
        strides = tuple(int(np.prod(shape[n + 1 :])) for n in range(len(shape)))
        return shadow(memory.address, shape, strides, name, memory, self._device, self._stream)

    def numbers(self, array: Any) -> NDArray[Any]:
        raise UnsupportedError(
            f"small arrays (slopes, sinks, lengths): expected lists or NumPy arrays, got "
            f"{type_name(array)} on a GPU; copy it to the processor"
        )

    def uploaded(self, numbers: NDArray[Any], like: Any) -> Any:
        """A copy of an array on the processor in the memory of the GPU."""
        made = self.empty(numbers.shape, like, str(numbers.dtype))
        made.owner.fill_from(numbers)
        return made

    def device(self, array: Any) -> int:
        """The number of the array's GPU."""
        return self._device

    def stream(self, array: Any) -> int:
        """The handle of the caller's stream, 0 for the default one."""
        return self._stream

    def captures(self, array: Any) -> bool:
        """Whether what that stream is asked for is written into a graph."""
        return driving.driver().captures(self._device, self._stream)

    def target(self, array: Any) -> str:
        """The name of the target that the array's GPU is."""
        return f"cuda-{driving.driver().arch(self._device)}"

    def read(self, array: Shadow) -> NDArray[Any]:
        """The elements of a dense array, on the processor, after all work of the stream."""
        found = np.empty(array.shape, array.dtype)
        call, stream = driving.driver().call, ctypes.c_void_p(self._stream)
        with driving.driver().current(self._device):
            place, size = ctypes.c_uint64(self.address(array)), ctypes.c_size_t(found.nbytes)
            call("cuMemcpyDtoHAsync_v2", ctypes.c_void_p(found.ctypes.data), place, size, stream)
            call("cuStreamSynchronize", stream)
        return found
