"""bfloat16 in and out through DLPack, which NumPy's own DLPack does not carry."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tvm_attention._tvm import load_tvm_libraries
from tvm_attention.dtypes import numpy_dtype

# Offset of dtype.code in DLManagedTensor, which starts with void* data, two int32 of the device and
# int32 ndim (dlpack.h, unchanged since its first version), and the code that stands for bfloat16.
_TYPE_CODE_OFFSET = 20
_BFLOAT_CODE = 4
_CAPSULE_NAME = b"dltensor"


class _Memory:
    """Two-byte elements that another library's tensor holds, for NumPy."""

    def __init__(self, tensor: Any) -> None:
        self._tensor = tensor  # keeps the memory
        self.__array_interface__ = {
            "version": 3,
            "typestr": "<u2",
            "shape": tuple(tensor.shape),
            "strides": tuple(2 * s for s in tensor.strides),
            "data": (tensor.data_ptr(), False),
        }


def imported(array: Any) -> NDArray[Any] | None:
    """A view of an array with DLPack in cpu memory; None unless it can be read and is bfloat16."""
    try:
        tensor = load_tvm_libraries().from_dlpack(array)
    except (BufferError, RuntimeError, TypeError, ValueError):
        return None
    if str(tensor.dtype) != "bfloat16":
        return None
    return np.asarray(_Memory(tensor)).view(numpy_dtype("bfloat16"))


class Exported:
    """A NumPy bfloat16 array with a DLPack interface that says so."""

    def __init__(self, array: NDArray[Any]) -> None:
        self._array = array

    def __dlpack__(self, **options: Any) -> Any:
        """A capsule of DLPack before versions, which every consumer must take."""
        capsule = self._array.view(np.uint16).__dlpack__()
        pointer = ctypes.pythonapi.PyCapsule_GetPointer
        pointer.restype, pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
        address = pointer(capsule, _CAPSULE_NAME)
        ctypes.c_uint8.from_address(address + _TYPE_CODE_OFFSET).value = _BFLOAT_CODE
        return capsule

    def __dlpack_device__(self) -> tuple[int, int]:
        return (1, 0)
