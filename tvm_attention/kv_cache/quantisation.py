"""Keys and values as int8 numbers and float32 scales."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tvm_attention.arrays import kind_of
from tvm_attention.errors import InvalidTypeError, InvalidValueError
from tvm_attention.small_arrays import floats
from tvm_attention.workload import DTYPES

_MOST = 127


def quantise(
    array: Any, scale: Any = None, *, name: str = "array"
) -> tuple[NDArray[np.int8], NDArray[np.float32]]:
    """Keys or values (..., heads, rows, dim), NumPy or torch, float32, float16 or bfloat16, as int8:

        quantised = clip(round(array / scale), -127, 127),   array ~ scale * quantised

    in float32, rounding halves to even. Without ``scale`` there is one for each head's row (token), max
    |array| / 127 over dim, by which the error is at most scale / 2; it is 0 for a row of zeros, which
    stays one. With ``scale`` (heads,), finite numbers of at least 0, there is one for each head; what is
    beyond 127 times it is cut off. A head's scale to pass is, say, its largest number in a sample / 127.

    Returns NumPy arrays: int8 of the array's shape, and float32 scales (..., heads, rows) or (heads,).

    Raises InvalidTypeError or InvalidValueError, also for an array that holds NaN or Inf, for which there
    is no int8; messages call the array ``name``.
    """
    kind = kind_of(array)
    opened = kind.opened(name, array)
    if kind.dtype(opened) not in DTYPES:
        raise InvalidTypeError(f"{name}: expected {' or '.join(DTYPES)}, got {kind.dtype(opened)}")
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
