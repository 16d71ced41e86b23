"""Planners of the kinds of array whose calls are remembered."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

from tvm_attention.arrays import NumPyArrays, TorchTensors
from tvm_attention.plans.native import ndarray_description
from tvm_attention.plans.table import Planner

_PLAIN = 0x500  # NPY_ARRAY_ALIGNED and NPY_ARRAY_WRITEABLE
_DESCRIBE = 40  # offset of dltensor_from_py_object_no_sync in DLPackExchangeAPI (dlpack.h)


def torch_planner(torch: Any) -> Planner | None:
    """None for a torch that does not offer DLPack's exchange functions, or does not say whether
    forward-mode derivatives are being taken, which a tensor itself does not tell in short."""
    describe = _exchange_function(torch.Tensor)
    if not describe or not hasattr(torch.autograd.forward_ad, "_current_level"):
        return None
    return Planner(TorchTensors(), describe, torch.empty_like)


def numpy_planner() -> Planner | None:
    """None for a Python whose objects, or a NumPy whose arrays are not what ndarray.ll expects, as
    without a global lock. Raises KernelBuildError."""
    if object.__basicsize__ != 2 * ctypes.sizeof(ctypes.c_void_p):
        return None
    planner = Planner(NumPyArrays(), ndarray_description(), np.empty_like)
    probe = np.zeros((2, 3, 5), np.float32)[:, ::2]
    kind = probe.ndim | _PLAIN << 32
    expected = [id(probe.dtype), kind, *probe.shape, *probe.strides]
    return planner if planner.layout(probe) == expected else None


def _exchange_function(tensor: type) -> int:
    """Address of torch's dltensor_from_py_object_no_sync, 0 if it has none."""
    capsule = getattr(tensor, "__dlpack_c_exchange_api__", None)
    named = capsule, b"dlpack_exchange_api"
    is_valid = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.c_char_p)
    if not is_valid(("PyCapsule_IsValid", ctypes.pythonapi))(*named):
        return 0
    get = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)
    api = get(("PyCapsule_GetPointer", ctypes.pythonapi))(*named)
    if ctypes.c_uint32.from_address(api).value != 1:  # DLPack's major version
        return 0
    return ctypes.c_void_p.from_address(api + _DESCRIBE).value or 0
