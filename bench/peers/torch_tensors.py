"""NumPy arrays of the benchmark as torch tensors on the same memory, and back."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from bench.problem import Numbers
from tvm_attention.dtypes import numpy_dtype

if TYPE_CHECKING:
    import torch


def tensor_of(array: Numbers) -> torch.Tensor:
    """NumPy has no bfloat16 of its own, so its bits are handed over."""
    import torch

    if array.dtype == np.bool_ or array.dtype.kind != "V":
        return torch.from_numpy(array)
    return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)


def array_of(tensor: torch.Tensor) -> Numbers:
    """The numbers of a tensor, in its dtype."""
    import torch

    if tensor.dtype != torch.bfloat16:
        array: Numbers = tensor.numpy()
        return array
    bits: Numbers = tensor.contiguous().view(torch.int16).numpy()
    return bits.view(numpy_dtype("bfloat16"))
