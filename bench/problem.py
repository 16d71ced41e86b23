"""Inputs of one workload in memory, laid out so that no contender is put at a disadvantage."""

from __future__ import annotations

import math
from collections.abc import Container, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tvm_attention import reference
from tvm_attention.accuracy import Expectation
from tvm_attention.dtypes import numpy_dtype
from tvm_attention.kv_cache.quantisation import quantise
from tvm_attention.random_calls import random_options
from tvm_attention.workload import AttentionWorkload

Float32 = NDArray[np.float32]
Numbers = NDArray[Any]
ALIGNMENT = 64  # bytes: a cache line, and what torch's own allocations have


@dataclass(frozen=True, slots=True)
class Problem:
    """query (B, Hq, L, E), key (B, Hkv, S, E) and value (B, Hkv, S, Ev), unit normal, contiguous, of the
    workload's dtype; ``options`` are those of ``reference.attended``.

    Keys and values that the workload stores as int8 are here what the int8 numbers stand for, in the
    query's dtype. ``key_value`` is the memory of key and value one after the other, flat, as float32
    numbers, so that the read bandwidth is measured on the very bytes a decode step reads; for int8,
    other memory of that size.
    """

    workload: AttentionWorkload
    query: Numbers
    key: Numbers
    value: Numbers
    key_value: Float32
    options: Mapping[str, Any]

    @classmethod
    def of(cls, workload: AttentionWorkload, seed: int = 0) -> Problem:
        """Random inputs, the same for the same seed."""
        w = workload
        assert w.kv_heads is not None
        assert w.value_dim is not None
        rng = np.random.default_rng(seed)
        dtype = numpy_dtype(w.dtype)
        query = aligned((w.batch, w.query_heads, w.query_length, w.head_dim), dtype)
        key_shape = (w.batch, w.kv_heads, w.key_length, w.head_dim)
        value_shape = (*key_shape[:3], w.value_dim)
        memory = aligned((math.prod(key_shape) + math.prod(value_shape),), dtype)
        for array in (query, memory):
            array[...] = rng.standard_normal(array.shape, dtype=np.float32)
        split = math.prod(key_shape)
        key, value = memory[:split].reshape(key_shape), memory[split:].reshape(value_shape)
        if w.kv_dtype is not None:
            for stored in (key, value):
                numbers, scales = quantise(stored)
                stored[...] = numbers * scales[..., None]
        read = memory if w.kv_dtype is None else np.ones(memory.size // 4, np.float32)
        floats = read[: read.nbytes // 4 * 4 // read.itemsize].view(np.float32)
        return cls(workload, query, key, value, floats, random_options(w, seed))

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """Shape of the result, (B, Hq, L, Ev)."""
        w = self.workload
        assert w.value_dim is not None
        return w.batch, w.query_heads, w.query_length, w.value_dim

    @property
    def scores(self) -> tuple[int, int, int, int]:
        """Shape of the scores, (B, Hq, L, S)."""
        return *self.shape[:3], self.workload.key_length

    def mask(self, natively: Container[str] = ()) -> Numbers | None:
        """Everything that hides keys, but what a peer takes ``natively`` (names of options), as one mask:
        bool (True = attend), or additive of the workload's dtype if it has an additive mask. It
        broadcasts to (B, Hq, L, S); None if nothing is hidden."""
        names = ("causal", "window", "kv_lengths")
        places = {n: o for n in names if (o := self.options.get(n)) is not None}
        left = {n: o for n, o in places.items() if n not in natively}
        if "window" in left and "causal" in places:  # whose right side is then the causal one
            left["causal"] = places["causal"]
        seen = reference.visible(self.scores, **left) if left else None
        given = self.options.get("mask")
        if given is None or seen is None:
            return seen if given is None else given
        if given.dtype == np.bool_:
            return np.asarray(given & seen)
        return np.where(seen, given, -np.inf).astype(given.dtype)

    def expectation(self) -> Expectation:
        """What float64 has for it."""
        inputs = (self.query, self.key, self.value)
        return Expectation.of(*inputs, self.workload, options=self.options)


def aligned(shape: tuple[int, ...], dtype: Any = np.float32) -> Numbers:
    """A contiguous array that starts on a cache line, filled with NaN: a result that was never written
    cannot pass for a right one."""
    item = np.dtype(dtype).itemsize
    size = math.prod(shape)
    memory: Numbers = np.full(size + ALIGNMENT // item, np.nan, dtype)
    start = -memory.ctypes.data % ALIGNMENT // item
    return memory[start : start + size].reshape(shape)


def additive(mask: Numbers, dtype: Any = np.float32) -> Numbers:
    """A mask as numbers to be added to the scores, aligned."""
    if mask.dtype == np.bool_:
        mask = np.where(mask, np.float32(0), np.float32(-np.inf))
    result = aligned(mask.shape, dtype)
    result[...] = mask
    return result


def rows_of_heads(x: Numbers) -> Numbers:
    """(B, H, L, E) -> an aligned copy (B, L, H * E)."""
    batch, heads, length, dim = x.shape
    result = aligned((batch, length, heads * dim), x.dtype)
    result.reshape(batch, length, heads, dim)[:] = x.transpose(0, 2, 1, 3)
    return result


def heads_of_rows(x: Numbers, heads: int) -> Numbers:
    """(B, L, H * E) -> a view (B, H, L, E)."""
    batch, length, width = x.shape
    result: Numbers = x.reshape(batch, length, heads, width // heads).transpose(0, 2, 1, 3)
    return result
