"""NumPy arrays."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tvm_attention.arrays.kind import Shape, is_dense, mixed_kinds
from tvm_attention.dtypes import numpy_dtype
from tvm_attention.errors import UnsupportedError


class NumPyArrays:
    name = "NumPy arrays"

    def opened(self, name: str, array: Any) -> Any:
        if not isinstance(array, np.ndarray):
            raise mixed_kinds(name, self.name, array)
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

    def has_whole_strides(self, array: Any) -> bool:
        return not any(s % array.itemsize for s in array.strides)

    def dtype(self, array: Any) -> str:
        return _name(array.dtype)

    def address(self, array: Any) -> int:
        address: int = array.__array_interface__["data"][0]
        return address

    def dense(self, array: Any) -> Any:
        return np.array(array, order="C")

    def swapped_heads(self, array: Any) -> Any:
        return array.swapaxes(1, 2)

    def expanded(self, array: Any, shape: Shape) -> Any:
        return np.broadcast_to(array, shape)

    def empty(self, shape: Shape, like: Any, dtype: str | None = None) -> Any:
        made_of = like.dtype if dtype is None else numpy_dtype(dtype)
        if shape == like.shape:
            made = np.empty_like(like, dtype=made_of, subok=False)
            if is_dense(shape, self.strides(made)):  # not so if an axis of stride 0 went last
                return made
        return np.empty(shape, made_of)

    def numbers(self, array: Any) -> NDArray[Any]:
        plain: NDArray[Any] = array
        return plain.astype(np.float32) if self.dtype(array) == "bfloat16" else plain

    def own_kind(self, result: Any, query: Any) -> Any:
        return result


@lru_cache(maxsize=64)  # NumPy takes microseconds to spell one
def _name(dtype: np.dtype[Any]) -> str:
    """ ">f4" for a foreign byte order, which no kernel reads."""
    return str(dtype)
