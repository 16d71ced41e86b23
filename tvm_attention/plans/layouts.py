"""What decides how the arrays of a call are read and written, as a key."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tvm_attention.arrays import Shape


def signature(arrays: Sequence[Any]) -> tuple[Any, ...]:
    """What the arrays' descriptions will be made of; None for each that is None. Raises RuntimeError for
    tensors without strides."""
    described = _of_ndarray if isinstance(arrays[0], np.ndarray) else _of_tensor
    return tuple(None if x is None else described(x) for x in arrays)


def layout(array: Any) -> tuple[Shape, Shape]:
    """Shape and strides, as the array's library counts them."""
    strides = array.strides if isinstance(array, np.ndarray) else array.stride()
    return tuple(array.shape), tuple(strides)


def of_one_element(array: Any, shape: Shape) -> Any:
    """An array of a shape and the other's dtype that stands for its layout and takes no memory."""
    if isinstance(array, np.ndarray):
        return np.broadcast_to(np.zeros(1, array.dtype), shape)
    return array.new_empty(1).expand(shape)


def _of_ndarray(array: Any) -> tuple[Any, ...]:
    flags = array.flags
    return array.shape, array.strides, array.dtype, flags.aligned, flags.writeable


def _of_tensor(tensor: Any) -> tuple[Any, ...]:
    return tensor.shape, tensor.stride(), tensor.dtype, tensor.device
