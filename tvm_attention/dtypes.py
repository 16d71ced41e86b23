"""Element types by the names that all kinds of array share."""

from __future__ import annotations

from typing import Any

import numpy as np

from tvm_attention.errors import UnsupportedError

ELEMENT_BYTES = {
    "bool": 1,
    "int8": 1,
    "int32": 4,
    "float16": 2,
    "bfloat16": 2,
    "float32": 4,
    "float64": 8,
}


def numpy_dtype(name: str) -> np.dtype[Any]:
    """NumPy's type of a name of ELEMENT_BYTES; UnsupportedError for bfloat16 without ml_dtypes."""
    if name != "bfloat16":
        return np.dtype(name)
    try:
        import ml_dtypes
    except ImportError:
        raise UnsupportedError(
            "bfloat16: expected the package ml_dtypes, which gives NumPy this type, and it is not "
            "installed; pip install ml_dtypes, or pass torch tensors or float32"
        ) from None
    made: np.dtype[Any] = np.dtype(ml_dtypes.bfloat16)
    return made
