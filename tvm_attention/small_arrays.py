"""Small arrays beside the tensors (lengths, offsets, slopes): read from arrays of any kind or sequences."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tvm_attention.arrays import NumPyArrays, kind_of, torch_cuda_kind
from tvm_attention.errors import InvalidTypeError


def floats(name: str, given: Any) -> NDArray[np.float32]:
    """A float32 copy; what is too large for it is infinite. Raises InvalidTypeError, naming ``name``."""
    numbers = _numbers(name, given)
    if numbers.dtype.kind not in "fiu":
        raise InvalidTypeError(f"{name}: expected numbers, got {numbers.dtype}")
    with np.errstate(over="ignore"):
        return numbers.astype(np.float32, order="C")


def whole_numbers(name: str, given: Any) -> NDArray[Any]:
    """Integers of whichever width they have, not copied where that can be helped. Raises
    InvalidTypeError, naming ``name``."""
    numbers = _numbers(name, given)
    if numbers.dtype.kind not in "iu" and numbers.size:
        raise InvalidTypeError(
            f"{name}: expected whole numbers, got {numbers.dtype}; convert them to int32"
        )
    return numbers


def _numbers(name: str, given: Any) -> NDArray[Any]:
    if isinstance(given, np.ndarray) or hasattr(given, "__dlpack__"):
        kind = torch_cuda_kind(given) or kind_of(given)
        return kind.numbers(kind.opened(name, given))
    try:
        return NumPyArrays().numbers(np.asarray(given))
    except (TypeError, ValueError, RuntimeError):
        raise InvalidTypeError(
            f"{name}: expected an array or a sequence of numbers, got {given!r}"
        ) from None
