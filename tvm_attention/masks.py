"""A caller's mask as kernels read it: in place, with stride 0 along each axis it is broadcast over."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from tvm_attention.arrays import ArrayKind, NumPyArrays, Shape
from tvm_attention.errors import InvalidTypeError, InvalidValueError
from tvm_attention.operands import Geometry

_AXES = ("batch", "query heads", "query rows", "keys")


@dataclass(frozen=True, slots=True, eq=False)
class Mask:
    """``array`` keeps the memory alive; ``strides`` (batch, query head, query row, key) are in elements
    of ``dtype``: "bool" (True = attend), "float32", "float16" or "bfloat16" (added to the scores)."""

    array: Any
    dtype: str
    strides: tuple[int, int, int, int]

    @property
    def per_key(self) -> bool:
        """Whether all query rows share one row of it."""
        return self.strides[2] == 0


def opened_mask(
    kind: ArrayKind, sizes: Geometry, mask: Any, query_dtype: str, name: str = "mask"
) -> Mask:
    """A mask of the query's kind, bool, float32 or of the query's dtype, which broadcasts to
    (batch, query heads, query rows, keys), or to those of these axes that the query has.

    Read in place whatever its strides; copied only where they are no whole elements.
    Raises InvalidTypeError, InvalidValueError or UnsupportedError, each naming it ``name``.
    """
    if isinstance(mask, np.generic) and isinstance(kind, NumPyArrays):
        mask = np.asarray(mask)  # what NumPy makes of arrays without axes
    array = kind.opened(name, mask)
    dtype = kind.dtype(array)
    _check_dtype(name, dtype, query_dtype)
    shape = kind.shape(array)
    extents, axes = _scores(sizes)
    fits = len(shape) <= len(extents) and all(
        n in (1, extent) for n, extent in zip(reversed(shape), reversed(extents), strict=False)
    )
    if not fits:
        raise InvalidValueError(
            f"{name}: expected a shape that broadcasts to {extents} ({', '.join(axes)}), got {shape}; "
            f"a mask of keys for each batch element, say, is mask[:, None, None, :]"
        )
    if not kind.has_whole_strides(array):
        array = kind.dense(array)
    return Mask(array, dtype, _strides(shape, kind.strides(array), axes))


def _check_dtype(name: str, dtype: str, query_dtype: str) -> None:
    added = dict.fromkeys(("float32", query_dtype))
    if dtype == "bool" or dtype in added:
        return
    if "float" in dtype:
        advice = "convert it to float32"
    elif "int" in dtype:
        advice = "convert it to bool if it says where to attend, or to float32 if it is added"
    else:
        advice = "convert it"
    raise InvalidTypeError(
        f"{name}: expected bool (True = attend) or {' or '.join(added)} (added to the scores), "
        f"got {dtype}; {advice}"
    )


def _scores(sizes: Geometry) -> tuple[Shape, tuple[str, ...]]:
    """Extents and names of the axes of the scores, as many as the query has."""
    rows_and_keys = (sizes.query_length, sizes.key_length)
    if sizes.axes == 2:
        return rows_and_keys, _AXES[2:]
    if sizes.axes == 3:
        return (sizes.batch, *rows_and_keys), (_AXES[0], *_AXES[2:])
    return (sizes.batch, sizes.query_heads, *rows_and_keys), _AXES


def _strides(shape: Shape, strides: Shape, axes: tuple[str, ...]) -> tuple[int, int, int, int]:
    own = dict.fromkeys(_AXES, 0)
    for axis, extent, stride in zip(
        reversed(axes), reversed(shape), reversed(strides), strict=False
    ):
        own[axis] = 0 if extent == 1 else stride
    batch, head, row, key = own.values()
    return batch, head, row, key
