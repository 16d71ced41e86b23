"""What the library needs to know of a kind of array."""

from __future__ import annotations

from typing import Any, Protocol

from numpy.typing import NDArray

from tvm_attention.dtypes import ELEMENT_BYTES
from tvm_attention.errors import InvalidTypeError

Shape = tuple[int, ...]


class ArrayKind(Protocol):
    """One kind of array. Strides are in elements, dtypes are names as in ``dtypes.ELEMENT_BYTES``
    (of types not listed there, whatever the array's library calls them)."""

    name: str

    def opened(self, name: str, array: Any) -> Any:
        """The array itself, or what stands for it in all calls below and keeps its memory alive.

        Raises unless its memory may be read from this process's processor.
        """

    def shape(self, array: Any) -> Shape: ...
    def strides(self, array: Any) -> Shape:
        """All zero where :meth:`has_whole_strides` says no."""

    def has_whole_strides(self, array: Any) -> bool:
        """Whether neighbours are whole elements apart along every axis, so that strides exist."""

    def dtype(self, array: Any) -> str: ...
    def address(self, array: Any) -> int: ...
    def dense(self, array: Any) -> Any:
        """A copy whose last axis is dense."""

    def swapped_heads(self, array: Any) -> Any:
        """A view with axes 1 and 2 exchanged: (batch, rows, heads, dim) as (batch, heads, rows, dim)
        and back."""

    def expanded(self, array: Any, shape: Shape) -> Any:
        """A view of a shape that the array's broadcasts to, with stride 0 where it is repeated."""

    def empty(self, shape: Shape, like: Any, dtype: str | None = None) -> Any:
        """A new array on the processor whose last axis is dense, otherwise laid out as ``like`` where
        the shapes are equal; of like's dtype unless another is named."""

    def numbers(self, array: Any) -> NDArray[Any]:
        """The elements as a NumPy array, those of types that NumPy alone has not as float32."""

    def own_kind(self, result: Any, query: Any) -> Any:
        """What :meth:`empty` made, or a view of it, as an array of the caller's query's library."""


def is_dense(shape: Shape, strides: Shape) -> bool:
    """Whether a kernel can read an array in place: neighbours along the last axis are adjacent.

    Strides that are all zero may stand for strides that are no whole elements.
    """
    return strides[-1] == 1 or 0 in shape or (shape[-1] == 1 and any(strides))


def memory_range(kind: ArrayKind, array: Any) -> tuple[int, int]:
    """First and one past the last address of an array's elements, whatever the signs of its strides.

    The array's dtype must be one of ``dtypes.ELEMENT_BYTES``.
    """
    address, (low, high) = kind.address(array), reach(kind, array)
    return address + low, address + high


def reach(kind: ArrayKind, array: Any) -> tuple[int, int]:
    """The same from the array's address, which its shape, strides and dtype decide."""
    shape, strides = kind.shape(array), kind.strides(array)
    if 0 in shape:
        return 0, 0
    size = ELEMENT_BYTES[kind.dtype(array)]
    steps = [(n - 1) * s * size for n, s in zip(shape, strides, strict=True)]
    return sum(min(s, 0) for s in steps), sum(max(s, 0) for s in steps) + size


def type_name(array: Any) -> str:
    """The full name of an array's class, for messages."""
    return f"{type(array).__module__}.{type(array).__qualname__}"


def mixed_kinds(name: str, kind: str, array: Any) -> InvalidTypeError:
    """The error for an array that is of another kind than the query."""
    return InvalidTypeError(
        f"{name}: expected {kind} like the query, got {type_name(array)}; convert it first"
    )
