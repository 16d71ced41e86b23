"""Small arrays beside the tensors (lengths, offsets, slopes): read from arrays of any kind or sequences."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tvm_attention.arrays import ArrayKind, NumPyArrays, kind_of, torch_cuda_kind
from tvm_attention.errors import InvalidTypeError

_MOST_COMPARED = 1 << 12  # bytes
_PLAIN = {int, float}


def contents(*given: Any) -> tuple[Any, ...] | None:
    """What makes calls with such arrays or lists (or None) one call: the numbers that they hold now. None
    where a check must look at them, as at those of other kinds than NumPy's and torch's."""
    found: list[Any] = []
    for array in given:
        if array is None:
            found.append(None)
            continue
        if type(array) in (list, tuple):
            types = tuple(map(type, array))
            if len(types) * 8 > _MOST_COMPARED or not _PLAIN.issuperset(types):
                return None
            found.append((types, tuple(array)))  # 1.0 equals 1 but is no length
            continue
        numbers = array if type(array) is np.ndarray else _numbers_of_tensor(array)
        if numbers is None or numbers.nbytes > _MOST_COMPARED:
            return None
        found.append((array.dtype, numbers.shape, numbers.tobytes()))
    return tuple(found)


def _numbers_of_tensor(given: Any) -> NDArray[Any] | None:
    """The memory of a torch tensor that the checks would take, bfloat16 as int16; None for any other."""
    torch: Any = sys.modules.get("torch")
    if torch is None or type(given) not in (torch.Tensor, torch.nn.Parameter):
        return None
    if given.requires_grad and torch.is_grad_enabled():
        return None
    if getattr(torch.autograd.forward_ad, "_current_level", 0) >= 0:  # it may have a tangent
        return None
    try:
        plain = given.detach()
        numbers: NDArray[Any] = (
            plain.view(torch.int16) if plain.dtype == torch.bfloat16 else plain
        ).numpy()
    except (RuntimeError, TypeError):  # on another device, sparse, negated, without memory, ...
        return None
    return numbers


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


def numbers_there(kind: ArrayKind, given: Any) -> Any:
    """Whole numbers as int32 where they are on the query's GPU, as tensors of torch or what does the same
    (tvm_attention.cuda.numbers); None for what is on the processor. Nobody waits to look at them."""
    return kind.whole_numbers(given) if hasattr(kind, "whole_numbers") else None


def floats_there(kind: ArrayKind, given: Any) -> Any:
    """The same of float32."""
    return kind.floats(given) if hasattr(kind, "floats") else None


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
