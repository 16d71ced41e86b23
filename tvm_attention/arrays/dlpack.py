"""Arrays of any other library, through DLPack."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from tvm_attention._tvm import load_tvm_libraries
from tvm_attention.arrays import dlpack_bfloat16
from tvm_attention.arrays.kind import mixed_kinds, type_name
from tvm_attention.arrays.numpy_arrays import NumPyArrays
from tvm_attention.errors import UnsupportedError


class DLPackArrays(NumPyArrays):
    """Read as NumPy arrays; results are made by the other library's ``from_dlpack``."""

    name = "DLPack arrays"

    def opened(self, name: str, array: Any) -> Any:
        if isinstance(array, np.ndarray):
            return super().opened(name, array)
        if not hasattr(array, "__dlpack__") or not hasattr(array, "__dlpack_device__"):
            raise mixed_kinds(name, self.name, array)
        device = array.__dlpack_device__()
        if device[0] != 1:
            raise UnsupportedError(
                f"{name}: expected an array in cpu memory, got DLPack device {device}; copy it there"
            )
        try:
            return np.from_dlpack(array)
        except (BufferError, RuntimeError, TypeError, ValueError) as error:
            found = dlpack_bfloat16.imported(array)
            if found is not None:
                return found
            raise UnsupportedError(
                f"{name}: expected an array that NumPy can read through DLPack, got "
                f"{type_name(array)}: {error}; convert it first"
            ) from error

    def own_kind(self, result: Any, query: Any) -> Any:
        """As the query's library says; where it says nothing, an array of TVM's that has DLPack."""
        if self.dtype(result) == "bfloat16":
            result = dlpack_bfloat16.Exported(result)
        namespace = getattr(query, "__array_namespace__", None)
        if namespace is not None:
            return namespace().from_dlpack(result)
        module = sys.modules.get(type(query).__module__.partition(".")[0])
        make = getattr(module, "from_dlpack", None) or load_tvm_libraries().from_dlpack
        return make(result)
