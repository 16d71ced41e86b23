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

    def opened(self, name: str, array: Any) -> Any:
        """The array itself, or what stands for it in all calls below and keeps its memory alive.

        Raises unless its memory may be read from this process's processor.
        """

    def shape(self, array: Any) -> Shape: ...
    def strides(self, array: Any) -> Shape: ...
    def dtype(self, array: Any) -> str: ...
    def address(self, array: Any) -> int: ...
    def dense(self, array: Any) -> Any:
        """A copy whose last axis is dense."""

    def empty(self, shape: Shape, like: Any) -> Any:
        """A new array on the processor whose last axis is dense, otherwise laid out as ``like`` where
        the shapes are equal."""

    def own_kind(self, result: Any, query: Any) -> Any:
        """What :meth:`empty` made as an array of the caller's query's library."""


def is_dense(shape: Shape, strides: Shape) -> bool:
    """Whether a kernel can read an array in place: neighbours along the last axis are adjacent.

    Strides that are all zero may stand for strides that are no whole elements.
    """
    return strides[-1] == 1 or 0 in shape or (shape[-1] == 1 and any(strides))


class NumPyArrays:
    name = "NumPy arrays"

    def opened(self, name: str, array: Any) -> Any:
        if not isinstance(array, np.ndarray):
            raise _mixed(name, self.name, array)
        if isinstance(array, np.ma.MaskedArray):
            raise UnsupportedError(
                f"{name}: expected an array without a mask, got a masked one, whose mask would be "
                f"ignored; use .filled()"
            )
        return array

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

    def dense(self, array: Any) -> Any:
        return np.array(array, order="C")

    def empty(self, shape: Shape, like: Any) -> Any:
        if shape == like.shape:
            made = np.empty_like(like, subok=False)
            if is_dense(shape, self.strides(made)):  # not so if an axis of stride 0 went last
                return made
        return np.empty(shape, like.dtype)

    def own_kind(self, result: Any, query: Any) -> Any:
        return result


class TorchTensors:
    name = "torch tensors"

    def __init__(self) -> None:
        self._torch = sys.modules["torch"]

    def opened(self, name: str, array: Any) -> Any:
        torch = self._torch
        if not isinstance(array, torch.Tensor):
            raise _mixed(name, self.name, array)
        if array.layout != torch.strided or array.is_nested or not array.is_cpu:
            raise UnsupportedError(
                f"{name}: expected a dense tensor on the cpu, got {_layout(array)} on "
                f"{array.device}; convert it with .to_dense() or .cpu()"
            )
        if array.requires_grad and torch.is_grad_enabled():
            raise UnsupportedError(
                f"{name} requires grad, and only the forward pass is computed; call under "
                f"torch.no_grad() or detach it"
            )
        if array.is_neg():  # such as x.conj().imag: its memory holds the negated numbers
            raise UnsupportedError(
                f"{name}: expected a tensor whose memory holds its numbers, got one with a pending "
                f"negation; call .resolve_neg()"
            )
        return array

    def shape(self, array: Any) -> Shape:
        return tuple(array.shape)

    def strides(self, array: Any) -> Shape:
        return tuple(array.stride())

    def dtype(self, array: Any) -> str:
        return str(array.dtype).removeprefix("torch.")

    def address(self, array: Any) -> int:
        address: int = array.data_ptr()
        return address

    def dense(self, array: Any) -> Any:
        return array.contiguous()

    def empty(self, shape: Shape, like: Any) -> Any:
        torch = self._torch
        if shape == tuple(like.shape):
            made = torch.empty_like(like.detach())
            if is_dense(shape, self.strides(made)):
                return made
        return like.new_empty(shape)  # not torch.empty: the caller may have set a default device

    def own_kind(self, result: Any, query: Any) -> Any:
        return result


class DLPackArrays(NumPyArrays):
    """Arrays of any other library: read as NumPy arrays, results made by their ``from_dlpack``."""

    name = "DLPack arrays"

    def opened(self, name: str, array: Any) -> Any:
        if isinstance(array, np.ndarray):
            return super().opened(name, array)
        if not hasattr(array, "__dlpack__") or not hasattr(array, "__dlpack_device__"):
            raise _mixed(name, self.name, array)
        device = array.__dlpack_device__()
        if device[0] != 1:
            raise UnsupportedError(
                f"{name}: expected an array in cpu memory, got DLPack device {device}; copy it there"
            )
        try:
            return np.from_dlpack(array)
        except (BufferError, RuntimeError, TypeError, ValueError) as error:
            raise UnsupportedError(
                f"{name}: expected an array that NumPy can read through DLPack, got "
                f"{_type(array)}: {error}; convert it first"
            ) from error

    def own_kind(self, result: Any, query: Any) -> Any:
        """As the query's library says; where it says nothing, an array of TVM's that has DLPack."""
        namespace = getattr(query, "__array_namespace__", None)
        if namespace is not None:
            return namespace().from_dlpack(result)
        module = sys.modules.get(type(query).__module__.partition(".")[0])
        make = getattr(module, "from_dlpack", None) or load_tvm_libraries().from_dlpack
        return make(result)


def _type(array: Any) -> str:
    return f"{type(array).__module__}.{type(array).__qualname__}"


def _layout(tensor: Any) -> str:
    return "a nested tensor" if tensor.is_nested else str(tensor.layout)


def _mixed(name: str, kind: str, array: Any) -> InvalidTypeError:
    return InvalidTypeError(
        f"{name}: expected {kind} like the query, got {_type(array)}; convert it first"
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
