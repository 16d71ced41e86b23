"""The kinds of array a caller may pass: NumPy arrays, torch tensors, anything with DLPack.

A kind reads shape, strides and address of its arrays without copying, and makes results of its own kind.
torch is never imported here: its tensors are recognised only in a process that has it.
"""

from __future__ import annotations

import sys
from typing import Any, Protocol

import numpy as np

from tvm_attention._tvm import load_tvm_libraries
from tvm_attention.errors import InvalidTypeError, UnsupportedError

Shape = tuple[int, ...]


class ArrayKind(Protocol):
    """What the library needs to know of one kind of array. Strides are in elements."""

    name: str

    def shape(self, array: Any) -> Shape: ...
    def strides(self, array: Any) -> Shape: ...
    def dtype(self, array: Any) -> str: ...
    def address(self, array: Any) -> int: ...
    def check(self, name: str, array: Any) -> None:
        """Raise unless the array's memory may be read from this process's processor."""

    def dense(self, array: Any) -> Any:
        """A copy whose last axis is dense."""

    def empty(self, shape: Shape, like: Any) -> Any:
        """A new array on the processor, laid out as ``like`` where the shapes are equal."""


class NumPyArrays:
    name = "NumPy arrays"

    def shape(self, array: Any) -> Shape:
        return tuple(array.shape)

    def strides(self, array: Any) -> Shape:
        size: int = array.itemsize
        if any(s % size for s in array.strides):
            axes: int = array.ndim
            return (0,) * axes  # fields of a record, say: no stride in elements; copied
        strides: Shape = tuple(s // size for s in array.strides)
        return strides

    def dtype(self, array: Any) -> str:
        return str(array.dtype)  # ">f4" for a foreign byte order, which no kernel reads

    def address(self, array: Any) -> int:
        address: int = array.__array_interface__["data"][0]
        return address

    def check(self, name: str, array: Any) -> None:
        if not isinstance(array, np.ndarray):
            raise _mixed(name, self.name, array)

    def dense(self, array: Any) -> Any:
        return np.array(array, order="C")

    def empty(self, shape: Shape, like: Any) -> Any:
        return (
            np.empty_like(like, subok=False) if shape == like.shape else np.empty(shape, like.dtype)
        )


class TorchTensors:
    name = "torch tensors"

    def __init__(self) -> None:
        self._torch = sys.modules["torch"]

    def shape(self, array: Any) -> Shape:
        return tuple(array.shape)

    def strides(self, array: Any) -> Shape:
        return tuple(array.stride())

    def dtype(self, array: Any) -> str:
        return str(array.dtype).removeprefix("torch.")

    def address(self, array: Any) -> int:
        address: int = array.data_ptr()
        return address

    def check(self, name: str, array: Any) -> None:
        torch = self._torch
        if not isinstance(array, torch.Tensor):
            raise _mixed(name, self.name, array)
        if array.layout != torch.strided or not array.is_cpu:
            raise UnsupportedError(
                f"{name}: expected a dense tensor on the cpu, got {array.layout} on {array.device}; "
                f"move it with .cpu()"
            )
        if array.requires_grad and torch.is_grad_enabled():
            raise UnsupportedError(
                f"{name} requires grad, and only the forward pass is computed; call under "
                f"torch.no_grad() or detach it"
            )

    def dense(self, array: Any) -> Any:
        return array.contiguous()

    def empty(self, shape: Shape, like: Any) -> Any:
        torch = self._torch
        if shape == tuple(like.shape):
            return torch.empty_like(like.detach())
        return torch.empty(shape, dtype=like.dtype)


class DLPackArrays:
    """Arrays of any other library: read through DLPack, results made by their ``from_dlpack``."""

    name = "DLPack arrays"

    def shape(self, array: Any) -> Shape:
        return tuple(self.view(array).shape)

    def strides(self, array: Any) -> Shape:
        view = self.view(array)
        return NumPyArrays().strides(view)

    def dtype(self, array: Any) -> str:
        return str(self.view(array).dtype)

    def address(self, array: Any) -> int:
        return NumPyArrays().address(self.view(array))

    def check(self, name: str, array: Any) -> None:
        if not hasattr(array, "__dlpack__"):
            raise _mixed(name, self.name, array)
        if array.__dlpack_device__()[0] != 1:
            raise UnsupportedError(
                f"{name}: expected an array in cpu memory, got DLPack device "
                f"{array.__dlpack_device__()}"
            )

    def dense(self, array: Any) -> Any:
        return np.array(self.view(array), order="C")

    def empty(self, shape: Shape, like: Any) -> Any:
        return np.empty(shape, self.view(like).dtype)

    def view(self, array: Any) -> Any:
        """The array as NumPy sees it, without a copy."""
        return array if isinstance(array, np.ndarray) else np.from_dlpack(array)

    def own_kind(self, result: Any, like: Any) -> Any:
        """A NumPy result as an array of ``like``'s library, where that library says how."""
        namespace = getattr(like, "__array_namespace__", None)
        if namespace is not None:
            return namespace().from_dlpack(result)
        module = sys.modules.get(type(like).__module__.partition(".")[0])
        make = getattr(module, "from_dlpack", None) or load_tvm_libraries().from_dlpack
        return make(result)


def _mixed(name: str, kind: str, array: Any) -> InvalidTypeError:
    return InvalidTypeError(
        f"{name}: expected {kind} like the query, got {type(array).__module__}."
        f"{type(array).__qualname__}; convert it first"
    )


def kind_of(query: Any) -> ArrayKind:
    """The kind a query belongs to; InvalidTypeError for anything that is no array."""
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
