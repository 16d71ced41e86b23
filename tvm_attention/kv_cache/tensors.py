"""The memory of a cache, and what is written into it: checked, and quantised where it is int8."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from tvm_attention.arrays import ArrayKind, NumPyArrays, Shape, TorchCudaTensors
from tvm_attention.call import Scales
from tvm_attention.cuda.kinds import call_kind, is_on_a_gpu
from tvm_attention.errors import InvalidTypeError, InvalidValueError, UnsupportedError
from tvm_attention.kv_cache.quantisation import head_scales, quantise
from tvm_attention.kv_cache.stored import check_layout
from tvm_attention.workload import DTYPES, KV_DTYPES, MAX_HEAD_DIM


@dataclass(frozen=True, slots=True)
class CacheShape:
    """What a cache holds: ``blocks`` (batch elements or pages) of ``rows`` keys for each head."""

    blocks: int
    kv_heads: int
    rows: int
    head_dim: int
    value_dim: int

    @classmethod
    def checked(cls, **named: Any) -> CacheShape:
        """From extents in order, by the names that the caller knows them by. Raises InvalidTypeError or
        InvalidValueError unless they are ints in range."""
        for name, number in named.items():
            most = MAX_HEAD_DIM if name.endswith("dim") else 2**31 - 1
            if isinstance(number, bool) or not isinstance(number, (int, np.integer)):
                raise InvalidTypeError(f"{name}: expected an int, got {number!r}")
            if not 1 <= number <= most:
                raise InvalidValueError(f"{name}: expected 1 to {most}, got {number}")
        return cls(*map(int, named.values()))


@dataclass(frozen=True, slots=True, eq=False)
class New:
    """Keys and values to be stored, (batch, kv heads, rows, dim) as the cache stores them, and, where a
    token has a scale of its own, these, (batch, kv heads, rows)."""

    key: Any
    value: Any
    key_scales: Any
    value_scales: Any

    @property
    def rows(self) -> int:
        return int(self.key.shape[2])


class CacheTensors:
    """``key`` and ``value`` (blocks, kv_heads, rows, dim) of a floating dtype or int8.

    ``key_scale`` and ``value_scale`` are float32: (kv_heads,) where they were given, else (blocks,
    kv_heads, rows), a scale a token; None unless the dtype is int8. NumPy arrays, or tensors where the
    cache is, on a GPU.
    """

    def __init__(
        self, shape: CacheShape, dtype: str, like: Any, key_scale: Any, value_scale: Any
    ) -> None:
        if dtype not in (*DTYPES, *KV_DTYPES):
            raise UnsupportedError(
                f"dtype: expected {' or '.join((*DTYPES, *KV_DTYPES))}, got {dtype!r}"
            )
        self.shape, self.dtype = shape, dtype
        self.kind: ArrayKind = NumPyArrays() if like is None else call_kind(like)
        if is_on_a_gpu(self.kind) and not isinstance(self.kind, TorchCudaTensors):
            raise UnsupportedError(
                "like: expected a torch tensor for a cache on a GPU, got another library's array; what it "
                "appends is copied by torch there"
            )
        example = np.empty(0, np.float32) if like is None else self.kind.opened("like", like)
        # With an axis more they are not laid out as an example of the same shape.
        whole: Shape = (1, shape.blocks, shape.kv_heads, shape.rows)
        self.key = self.kind.empty((*whole, shape.head_dim), example, dtype)[0]
        self.value = self.kind.empty((*whole, shape.value_dim), example, dtype)[0]
        self.key_scale = self._scale("key_scale", key_scale, example)
        self.value_scale = self._scale("value_scale", value_scale, example)

    def new(self, key: Any, value: Any, batch: int, layout: str) -> New:
        """Keys and values of ``batch`` elements in a layout, checked, as this cache stores them.

        Raises InvalidValueError or InvalidTypeError.
        """
        check_layout(layout)
        shape = self.shape
        arrays = []
        for name, array, dim in (("key", key, shape.head_dim), ("value", value, shape.value_dim)):
            array = self.kind.opened(name, array)
            if len(self.kind.shape(array)) == 4 and layout == "bshd":
                array = self.kind.swapped_heads(array)
            found = self.kind.shape(array)
            expected = (batch, shape.kv_heads, found[2] if len(found) == 4 else "rows", dim)
            if found != expected:
                raise InvalidValueError(
                    f"{name}: expected (batch, kv heads, rows, dim) of "
                    f"({', '.join(map(str, expected))}), got {found}"
                )
            arrays.append(array)
        if arrays[0].shape[2] != arrays[1].shape[2]:
            raise InvalidValueError(
                f"rows: expected key and value alike, got {arrays[0].shape[2]} and "
                f"{arrays[1].shape[2]}"
            )
        return self._quantised(*arrays) if self.dtype == "int8" else self._as_they_are(*arrays)

    def write(self, block: Any, start: int, new: New, element: Any, first: int, end: int) -> None:
        """Store rows ``first`` to ``end`` of an element (or of all: slices) from row ``start`` on."""
        rows, source = slice(start, start + end - first), slice(first, end)
        self._writable(self.key)[block, :, rows] = new.key[element, :, source]
        self._writable(self.value)[block, :, rows] = new.value[element, :, source]
        for scales, stored in (
            (new.key_scales, self.key_scale),
            (new.value_scales, self.value_scale),
        ):
            if scales is not None and stored is not None:
                stored[block, :, rows] = scales[element, :, source]

    def _writable(self, array: Any) -> Any:
        """int8 is computed by NumPy, whatever the cache's kind on the processor."""
        by_numpy = self.dtype == "int8" and not is_on_a_gpu(self.kind)
        return self.kind.numbers(array) if by_numpy else array

    def _as_they_are(self, key: Any, value: Any) -> New:
        for name, array in (("key", key), ("value", value)):
            dtype = self.kind.dtype(array)
            if dtype != self.dtype:
                raise InvalidTypeError(f"{name}: expected {self.dtype}, got {dtype}; convert it")
        return New(key, value, None, None)

    def _quantised(self, key: Any, value: Any) -> New:
        found = []
        for name, array, own in (
            ("key", key, self.key_scale),
            ("value", value, self.value_scale),
        ):
            given = own if own is not None and own.ndim == 1 else None
            numbers, scales = quantise(array, given, name=name)
            found.append((numbers, None if given is not None else scales))
        return New(found[0][0], found[1][0], found[0][1], found[1][1])

    def _scale(self, name: str, given: Any, example: Any) -> Any:
        shape = self.shape
        if self.dtype != "int8":
            if given is not None:
                raise InvalidValueError(f"{name}: expected None unless dtype='int8', got scales")
            return None
        if given is not None:
            scales = head_scales(name, given, shape.kv_heads)
        else:
            scales = np.zeros((shape.blocks, shape.kv_heads, shape.rows), np.float32)
        if isinstance(self.kind, TorchCudaTensors):
            return self.kind.uploaded(scales, example)
        return scales


def scales_of(key: Any, value: Any) -> Scales | None:
    """Scales (kv heads,) or (batch, kv heads, rows) as kernels take them; None without."""
    if key is None or value is None:
        return None
    return Scales(key, value, _strides(key), _strides(value))


def _strides(scales: Any) -> Shape:
    plain = isinstance(scales, np.ndarray)
    own: Shape = NumPyArrays().strides(scales) if plain else tuple(scales.stride())
    return (0, *own, 0) if len(own) == 1 else own
