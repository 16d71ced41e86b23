"""Memory of a GPU of our own, and NumPy arrays that stand for memory there."""

from __future__ import annotations

import ctypes
import weakref
from collections import deque
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tvm_attention.cuda import driver as driving
from tvm_attention.cuda.driver import Driver
from tvm_attention.dtypes import numpy_dtype

# Of what was copied from here last: some systems' GPUs read memory that is not pinned themselves, later. A
# stream holds fewer copies than these before whoever asks for another has to wait.
_SMALL_BYTES = 1 << 16
_copied: deque[Any] = deque(maxlen=4096)


class DeviceMemory:
    """Bytes of a GPU, taken and given back in the order of a stream's work: neither waits for it, but on
    GPUs without pools of memory (some Jetsons), where giving back does."""

    def __init__(self, driver: Driver, device: int, size: int, stream: int) -> None:
        self._driver, self._device, self._stream = driver, device, ctypes.c_void_p(stream)
        place, bytes_ = ctypes.c_uint64(), ctypes.c_size_t(size)
        pools = driver.has_pools(device)
        with driver.current(device):
            if pools:
                driver.call("cuMemAllocAsync", ctypes.byref(place), bytes_, self._stream)
            else:
                driver.call("cuMemAlloc_v2", ctypes.byref(place), bytes_)
        self.address = place.value
        # At the end of the process the driver takes back everything itself.
        end = weakref.finalize(self, _free, driver, device, self.address, stream if pools else None)
        end.atexit = False

    def fill_from(self, numbers: NDArray[Any]) -> None:
        """Copy an array of the processor's there, before later work of the stream."""
        _copy(self._driver, self._device, self._stream.value or 0, self.address, numbers)


def _free(driver: Driver, device: int, address: int, stream: int | None) -> None:
    with driver.current(device):
        if stream is None:
            driver.call("cuMemFree_v2", ctypes.c_uint64(address))
        else:
            driver.call("cuMemFreeAsync", ctypes.c_uint64(address), ctypes.c_void_p(stream))


def _copy(driver: Driver, device: int, stream: int, address: int, numbers: NDArray[Any]) -> None:
    with driver.current(device):
        driver.call(
            "cuMemcpyHtoDAsync_v2", ctypes.c_uint64(address), ctypes.c_void_p(numbers.ctypes.data),
            ctypes.c_size_t(numbers.nbytes), ctypes.c_void_p(stream),
        )  # fmt: skip
        if numbers.nbytes <= _SMALL_BYTES:
            _copied.append(numbers)
        else:
            driver.call("cuStreamSynchronize", ctypes.c_void_p(stream))


class Shadow(np.ndarray[Any, np.dtype[Any]]):
    """An array whose shape, strides and address are those of memory of a GPU. Its elements are never read
    here, and set to numbers by copies on the stream."""

    owner: Any = None  # keeps the memory
    gpu: int = 0
    stream: int = 0

    def __array_finalize__(self, of: Any) -> None:
        self.owner = getattr(of, "owner", None)
        self.gpu, self.stream = getattr(of, "gpu", 0), getattr(of, "stream", 0)

    def __setitem__(self, index: Any, value: Any) -> None:
        part = self[index]
        if part.ndim and not part.flags.c_contiguous:
            for row in part:
                row[...] = value
        elif part.size:
            address = int(part.__array_interface__["data"][0])
            numbers = np.full(part.shape, value, self.dtype)
            _copy(driving.driver(), self.gpu, self.stream, address, numbers)

    def __repr__(self) -> str:
        return f"array on GPU {self.gpu}, shape {self.shape}, {self.dtype}"


class _Interface:
    def __init__(self, values: dict[str, Any]) -> None:
        self.__array_interface__ = values


def shadow(
    address: int, shape: tuple[int, ...], strides: tuple[int, ...], dtype: str, owner: Any,
    device: int, stream: int,
) -> Shadow:  # fmt: skip
    """Strides are in elements. Raises UnsupportedError for bfloat16 without ml_dtypes."""
    kind = numpy_dtype(dtype)
    plain = kind if dtype != "bfloat16" else np.dtype(np.uint16)
    made = np.asarray(
        _Interface(
            {
                "version": 3,
                "data": (address, False),
                "shape": shape,
                "strides": tuple(plain.itemsize * s for s in strides),
                "typestr": plain.str,
            }
        )
    )
    found = made.view(kind).view(Shadow)
    found.owner, found.gpu, found.stream = owner, device, stream
    return found
