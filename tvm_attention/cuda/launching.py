"""A kernel's parameters by name, as a launch takes them."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from typing import Any

from tvm_attention.arguments import SCALARS, STRIDES, TENSORS, extras
from tvm_attention.workload import AttentionWorkload

_C_TYPES: dict[str, Any] = {
    "int32": ctypes.c_int32,
    "int64": ctypes.c_int64,
    "float32": ctypes.c_float,
}


def parameter_types(workload: AttentionWorkload) -> dict[str, Any]:
    """The C types of all arguments of a workload's kernels; those of buffers are addresses."""
    types: dict[str, Any] = dict.fromkeys(TENSORS, ctypes.c_void_p)
    types |= {n: ctypes.c_float if n == "scale_log2" else ctypes.c_int32 for n in SCALARS}
    types |= {f"{t}_{a}_stride": ctypes.c_int64 for t in TENSORS for a in STRIDES}
    for extra in extras(workload):
        types[extra.name] = ctypes.c_void_p if extra.buffer else _C_TYPES[extra.dtype]
    return types


class Parameters:
    """The parameters of a launch: an array of pointers to them, as cuLaunchKernel takes it."""

    def __init__(
        self, names: tuple[str, ...], types: Mapping[str, Any], values: Mapping[str, float]
    ) -> None:
        self._values = [types[n](values[n]) for n in names]
        pointers = [ctypes.cast(ctypes.byref(v), ctypes.c_void_p) for v in self._values]
        self.array = (ctypes.c_void_p * len(names))(*pointers)
