"""DLPack's capsules, read and made by hand: for memory that NumPy may not touch."""

from __future__ import annotations

import ctypes
import weakref
from typing import Any

from tvm_attention.errors import UnsupportedError

_NAME, _TAKEN = b"dltensor", b"used_dltensor"
# Codes of DLDataType (dlpack.h), by names of tvm_attention.dtypes.
_CODES = {"int": 0, "uint": 1, "float": 2, "bfloat": 4, "bool": 6}


class _Tensor(ctypes.Structure):
    """DLManagedTensor, the form before versions, which every library must take."""


_Deleter = ctypes.CFUNCTYPE(None, ctypes.POINTER(_Tensor))
_Tensor._fields_ = [
    ("data", ctypes.c_void_p), ("device_type", ctypes.c_int32), ("device", ctypes.c_int32),
    ("axes", ctypes.c_int32), ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8),
    ("lanes", ctypes.c_uint16), ("shape", ctypes.POINTER(ctypes.c_int64)),
    ("strides", ctypes.POINTER(ctypes.c_int64)), ("offset", ctypes.c_uint64),
    ("context", ctypes.c_void_p), ("deleter", _Deleter),
]  # fmt: skip

_api = ctypes.pythonapi
_api.PyCapsule_GetPointer.restype = ctypes.c_void_p
_api.PyCapsule_GetPointer.argtypes = [ctypes.py_object, ctypes.c_char_p]
_api.PyCapsule_SetName.argtypes = [ctypes.py_object, ctypes.c_char_p]
_api.PyCapsule_New.restype = ctypes.py_object
_api.PyCapsule_New.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
# What was given away, until its new owner lets go of it.
_given: dict[int, tuple[Any, ...]] = {}


class Described:
    """What a capsule says of an array, whose memory is kept as long as this is. Strides are in elements."""

    def __init__(self, capsule: Any) -> None:
        pointer = ctypes.cast(_api.PyCapsule_GetPointer(capsule, _NAME), ctypes.POINTER(_Tensor))
        _api.PyCapsule_SetName(capsule, _TAKEN)  # the deleter is ours to call now
        weakref.finalize(self, _let_go, pointer).atexit = False
        tensor = pointer.contents
        self.device = int(tensor.device)
        self.shape = tuple(tensor.shape[i] for i in range(tensor.axes))
        self.dtype = _dtype_name(tensor.code, tensor.bits, tensor.lanes)
        self.address = int(tensor.data or 0) + int(tensor.offset)
        if tensor.strides:
            self.strides = tuple(tensor.strides[i] for i in range(tensor.axes))
        else:
            self.strides = _dense(self.shape)


def capsule(
    address: int, shape: tuple[int, ...], strides: tuple[int, ...], dtype: str, device: int,
    kept: Any, device_type: int,
) -> Any:  # fmt: skip
    """A capsule over memory, which ``kept`` keeps until the receiver's array goes."""
    axes = len(shape)
    sizes, steps = (ctypes.c_int64 * axes)(*shape), (ctypes.c_int64 * axes)(*strides)
    name = dtype.rstrip("0123456789")
    bits, code = 8 if dtype == "bool" else int(dtype[len(name) :]), _CODES[name]
    tensor = _Tensor(address, device_type, device, axes, code, bits, 1, sizes, steps, 0, None)
    tensor.deleter = _RELEASE
    place = ctypes.addressof(tensor)
    _given[place] = (tensor, sizes, steps, kept)
    return _api.PyCapsule_New(place, _NAME, None)  # whose receiver calls the deleter


def _release(tensor: Any) -> None:
    _given.pop(ctypes.addressof(tensor.contents), None)


_RELEASE = _Deleter(_release)


def _let_go(pointer: Any) -> None:
    if pointer.contents.deleter:
        pointer.contents.deleter(pointer)


def _dtype_name(code: int, bits: int, lanes: int) -> str:
    name = next((n for n, c in _CODES.items() if c == code), None)
    if name is None or lanes != 1:
        raise UnsupportedError(f"DLPack: expected numbers or bools, got type {code} of {bits} bits")
    return "bool" if name == "bool" else f"{name}{bits}"


def _dense(shape: tuple[int, ...]) -> tuple[int, ...]:
    strides, step = [], 1
    for extent in reversed(shape):
        strides.append(step)
        step *= extent
    return tuple(reversed(strides))
