"""Keys and values as int8 numbers and float32 scales."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tvm_attention.arrays import kind_of, torch_cuda_kind
from tvm_attention.arrays.torch_cuda import TorchCudaTensors
from tvm_attention.errors import InvalidTypeError, InvalidValueError
from tvm_attention.small_arrays import floats
from tvm_attention.workload import DTYPES

_MOST = 127


def quantise(array: Any, scale: Any = None, *, name: str = "array") -> tuple[Any, Any]:
    """Keys or values (..., heads, rows, dim), NumPy or torch, float32, float16 or bfloat16, as int8:

        quantised = clip(round(array / scale), -127, 127),   array ~ scale * quantised

    in float32, rounding halves to even. Without ``scale`` there is one for each head's row (token), max
    |array| / 127 over dim, by which the error is at most scale / 2; it is 0 for a row of zeros, which
    stays one. With ``scale`` (heads,), finite numbers of at least 0, there is one for each head; what is
    beyond 127 times it is cut off. A head's scale to pass is, say, its largest number in a sample / 127.

    Returns NumPy arrays: int8 of the array's shape, and float32 scales (..., heads, rows) or (heads,). Of a
    torch tensor on a GPU, tensors there: nothing waits for it, so NaN and Inf are not looked for. They
    make their row's scale NaN or Inf, and so what is computed from it NaN; with ``scale`` they become 0
    and +-127.

    Raises InvalidTypeError or InvalidValueError, also for an array that holds NaN or Inf, for which there
    is no int8; messages call the array ``name``.
    """
    there = torch_cuda_kind(array)
    kind = there or kind_of(array)
    opened = kind.opened(name, array)
    if kind.dtype(opened) not in DTYPES:
        raise InvalidTypeError(f"{name}: expected {' or '.join(DTYPES)}, got {kind.dtype(opened)}")
    if there is not None:
        return _quantised_there(there, opened, scale, name)
    numbers = kind.numbers(opened).astype(np.float32)
    if numbers.ndim < 3:
        raise InvalidValueError(f"{name}: expected (..., heads, rows, dim), got {numbers.shape}")
    if not np.isfinite(numbers).all():
        raise InvalidValueError(
            f"{name}: expected finite numbers to store as int8, got NaN or Inf; keep them in a cache of "
            f"a floating dtype, or replace them"
        )
    if scale is None:
        scales = np.abs(numbers).max(axis=-1, initial=0.0) / np.float32(_MOST)
        steps = scales[..., None]
    else:
        scales = head_scales("scale", scale, numbers.shape[-3])
        steps = scales[:, None, None]
    with np.errstate(over="ignore"):  # beyond float32 is beyond 127, too
        ratio = np.divide(numbers, steps, out=np.zeros_like(numbers), where=steps > 0)
    return np.clip(np.rint(ratio), -_MOST, _MOST).astype(np.int8), scales


def _quantised_there(kind: TorchCudaTensors, array: Any, scale: Any, name: str) -> tuple[Any, Any]:
    """The same by torch, on the GPU that the tensor is on."""
    numbers = array.float()
    if numbers.ndim < 3:
        raise InvalidValueError(
            f"{name}: expected (..., heads, rows, dim), got {tuple(array.shape)}"
        )
    if scale is None:
        scales = numbers.abs().amax(-1) / _MOST
        steps = scales[..., None]
    else:
        scales = kind.floats(scale)
        if scales is None:
            scales = kind.uploaded(head_scales("scale", scale, numbers.shape[-3]), array)
        steps = scales[:, None, None]
    ratio = (numbers / steps).nan_to_num(nan=0.0) * (steps > 0)  # as above, 0 where the scale is
    return ratio.round().clamp(-_MOST, _MOST).to(kind.int8), scales


def head_scales(name: str, given: Any, heads: int) -> NDArray[np.float32]:
    """Scales (heads,). Raises InvalidTypeError or InvalidValueError, naming them ``name``."""
    scales = floats(name, given)
    if scales.shape != (heads,):
        raise InvalidValueError(
            f"{name}: expected shape {(heads,)} (heads,), got {scales.shape}; without it every token "
            f"gets a scale of its own"
        )
    if not ((scales >= 0) & np.isfinite(scales)).all():
        raise InvalidValueError(f"{name}: expected finite numbers of at least 0, got {scales}")
    return scales
