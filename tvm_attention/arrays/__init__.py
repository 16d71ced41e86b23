"""The kinds of array a caller may pass: NumPy arrays, torch tensors, anything with DLPack.

A kind reads shape, strides and address of its arrays without copying, and makes results of its own kind.
torch is never imported here: its tensors are recognised only in a process that has it.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from tvm_attention.arrays.dlpack import DLPackArrays
from tvm_attention.arrays.kind import ArrayKind, Shape, is_dense, memory_range, reach
from tvm_attention.arrays.numpy_arrays import NumPyArrays
from tvm_attention.arrays.torch_cuda import TorchCudaTensors, torch_cuda_kind
from tvm_attention.arrays.torch_tensors import TorchTensors
from tvm_attention.errors import InvalidTypeError

__all__ = [
    "ArrayKind",
    "DLPackArrays",
    "NumPyArrays",
    "Shape",
    "TorchCudaTensors",
    "TorchTensors",
    "is_dense",
    "kind_of",
    "memory_range",
    "reach",
    "torch_cuda_kind",
]


def kind_of(query: Any) -> ArrayKind:
    """The kind a query on the processor belongs to; InvalidTypeError for anything that is no array."""
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(query, torch.Tensor):
        return TorchTensors()
    if isinstance(query, np.ndarray):
        return NumPyArrays()
    if hasattr(query, "__dlpack__") and hasattr(query, "__dlpack_device__"):
        return DLPackArrays()
    raise InvalidTypeError(
        f"query: expected a NumPy array, a torch tensor or an array with __dlpack__, got "
        f"{type(query).__qualname__}"
    )
