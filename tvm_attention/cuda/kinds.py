"""The kind of array of a call, on the processor or a GPU, and where its kernel is to run."""

from __future__ import annotations

from typing import Any

from tvm_attention.arrays import ArrayKind, TorchCudaTensors, kind_of
from tvm_attention.cuda.dlpack_arrays import DLPackCudaArrays, device_kind


def call_kind(query: Any) -> ArrayKind:
    """The kind that a query belongs to. Raises InvalidTypeError for anything that is no array."""
    return device_kind(query) or kind_of(query)


def is_on_a_gpu(kind: ArrayKind) -> bool:
    """Whether the memory of a kind's arrays is a GPU's."""
    return isinstance(kind, (TorchCudaTensors, DLPackCudaArrays))


def gpu_of(kind: ArrayKind, array: Any) -> str | None:
    """The name of the target that an array's GPU is; None for arrays of the processor."""
    if isinstance(kind, (TorchCudaTensors, DLPackCudaArrays)):
        return kind.target(array)
    return None
