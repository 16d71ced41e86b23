"""Arrays of any library in a GPU's memory, through DLPack: CuPy's, JAX's.

The library is told on which stream its array will be read: CuPy's current one; the GPU's default stream for
libraries that have none. Results are handed back the same way, and wait for nothing but that.
"""

from __future__ import annotations

import ctypes
import sys
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tvm_attention._tvm import load_tvm_libraries
from tvm_attention.arrays import TorchCudaTensors, torch_cuda_kind
from tvm_attention.arrays.dlpack_capsule import Described, capsule
from tvm_attention.arrays.kind import mixed_kinds
from tvm_attention.cuda import driver as driving
from tvm_attention.cuda.device_arrays import DeviceArrays
from tvm_attention.cuda.driver import Driver
from tvm_attention.cuda.memory import Shadow, shadow
from tvm_attention.cuda.numbers import FLOATS, WHOLE, Numbers
from tvm_attention.dtypes import ELEMENT_BYTES
from tvm_attention.errors import UnsupportedError

CUDA = 2  # DLPack's number of memory of NVIDIA's GPUs
_DEFAULT_STREAM, _LEGACY = 0, 1  # the driver's and DLPack's name of the same stream
_NO_TIMES = 2  # CU_EVENT_DISABLE_TIMING


class DLPackCudaArrays(DeviceArrays):
    """Those of the GPU that a query is on; each is stood for by a :class:`Shadow`."""

    name = "DLPack arrays on a GPU"

    def __init__(self, query: Any) -> None:
        super().__init__(int(query.__dlpack_device__()[1]), _current_stream(query))

    def opened(self, name: str, array: Any) -> Any:
        if isinstance(array, Shadow):
            return array
        if not hasattr(array, "__dlpack__") or not hasattr(array, "__dlpack_device__"):
            raise mixed_kinds(name, self.name, array)
        place = tuple(int(n) for n in array.__dlpack_device__())
        if place != (CUDA, self._device):
            raise UnsupportedError(
                f"{name}: expected an array on GPU {self._device} like the query, got DLPack device "
                f"{place}; copy it there"
            )
        found = Described(array.__dlpack__(stream=self._stream or _LEGACY))
        if found.dtype not in ELEMENT_BYTES:
            raise UnsupportedError(f"{name}: expected floats or bools, got {found.dtype}")
        kept = (found, array)
        return shadow(
            found.address, found.shape, found.strides, found.dtype, kept, self._device, self._stream
        )

    def whole_numbers(self, array: Any) -> Numbers | None:
        """Lengths, offsets or a table on the query's GPU; None for anything else."""
        return self._numbers_there(array, WHOLE)

    def floats(self, array: Any) -> Numbers | None:
        """The same of sinks and slopes."""
        return self._numbers_there(array, FLOATS)

    def uploaded(self, numbers: NDArray[Any], like: Any) -> Any:
        made = super().uploaded(numbers, like)
        own = str(numbers.dtype)
        return Numbers(made, own) if own in ("int32", "float32") else made

    def address(self, array: Any) -> int:
        return super().address(array.held if isinstance(array, Numbers) else array)

    def _numbers_there(self, array: Any, dtypes: tuple[str, ...]) -> Numbers | None:
        if isinstance(array, Numbers):
            return array
        place = getattr(array, "__dlpack_device__", None)
        if place is None or tuple(int(n) for n in place()) != (CUDA, self._device):
            return None
        found = Described(array.__dlpack__(stream=self._stream or _LEGACY))
        if found.dtype not in dtypes:
            return None
        held = shadow(
            found.address, found.shape, found.strides, found.dtype, (found, array), self._device, self._stream
        )  # fmt: skip
        return Numbers(held, found.dtype).contiguous()

    def own_kind(self, result: Any, query: Any) -> Any:
        """As the query's library says; where it says nothing, an array of TVM's that has DLPack."""
        exported = _Exported(result, driving.driver())
        namespace = getattr(query, "__array_namespace__", None)
        if namespace is not None:
            return namespace().from_dlpack(exported)
        module = sys.modules.get(type(query).__module__.partition(".")[0])
        make = getattr(module, "from_dlpack", None) or load_tvm_libraries().from_dlpack
        return make(exported)


class _Exported:
    """An array of ours on a GPU, for another library."""

    def __init__(self, array: Shadow, made: Driver) -> None:
        self._array, self._driver = array, made

    def __dlpack_device__(self) -> tuple[int, int]:
        return (CUDA, self._array.gpu)

    def __dlpack__(self, *, stream: int | None = None, **_: Any) -> Any:
        """A capsule; work on ``stream`` from now on comes after ours (-1: the receiver sees to that)."""
        array = self._array
        receiver = _DEFAULT_STREAM if stream in (None, _LEGACY) else stream
        if stream != -1 and receiver != array.stream:
            self._order(int(receiver or 0))
        strides = tuple(s // array.itemsize for s in array.strides)
        address = int(array.__array_interface__["data"][0])
        return capsule(
            address, array.shape, strides, str(array.dtype), array.gpu, array.owner, CUDA
        )

    def _order(self, receiver: int) -> None:
        """Let a stream wait for what ours has to do; the processor does not."""
        call, event = self._driver.call, ctypes.c_void_p()
        with self._driver.current(self._array.gpu):
            call("cuEventCreate", ctypes.byref(event), _NO_TIMES)
            call("cuEventRecord", event, ctypes.c_void_p(self._array.stream))
            call("cuStreamWaitEvent", ctypes.c_void_p(receiver), event, 0)
            call("cuEventDestroy_v2", event)


def device_kind(query: Any) -> DLPackCudaArrays | TorchCudaTensors | None:
    """The kind of an array in a GPU's memory; None for anything else."""
    found = torch_cuda_kind(query)
    if found is not None:
        return found
    torch = sys.modules.get("torch")
    if isinstance(query, np.ndarray) or (torch is not None and isinstance(query, torch.Tensor)):
        return None
    place = getattr(query, "__dlpack_device__", None)
    if place is None or int(place()[0]) != CUDA:
        return None
    return DLPackCudaArrays(query)


def _current_stream(query: Any) -> int:
    """The stream on which the query's library works now."""
    module = sys.modules.get(type(query).__module__.partition(".")[0])
    current = getattr(getattr(module, "cuda", None), "get_current_stream", None)
    return _DEFAULT_STREAM if current is None else int(current().ptr)
