"""Inputs of one workload in memory, laid out so that no contender is put at a disadvantage."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tvm_attention.workload import AttentionWorkload

Float32 = NDArray[np.float32]
ALIGNMENT = 64  # bytes: a cache line, and what torch's own allocations have


@dataclass(frozen=True, slots=True)
class Problem:
    """query (B, Hq, L, E), key (B, Hkv, S, E) and value (B, Hkv, S, Ev), unit normal, contiguous.

    ``key_value`` is the memory of key and value one after the other, flat, so that the read
    bandwidth is measured on the very bytes a decode step reads.
    """

    workload: AttentionWorkload
    query: Float32
    key: Float32
    value: Float32
    key_value: Float32

    @classmethod
    def of(cls, workload: AttentionWorkload, seed: int = 0) -> Problem:
        """Random inputs, the same for the same seed."""
        w = workload
        assert w.kv_heads is not None
        assert w.value_dim is not None
        rng = np.random.default_rng(seed)
        query = aligned((w.batch, w.query_heads, w.query_length, w.head_dim))
        key_shape = (w.batch, w.kv_heads, w.key_length, w.head_dim)
        value_shape = (*key_shape[:3], w.value_dim)
        key_value = aligned((math.prod(key_shape) + math.prod(value_shape),))
        for array in (query, key_value):
            rng.standard_normal(dtype=np.float32, out=array)
        split = math.prod(key_shape)
        key = key_value[:split].reshape(key_shape)
        value = key_value[split:].reshape(value_shape)
        return cls(workload, query, key, value, key_value)

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """Shape of the result, (B, Hq, L, Ev)."""
        w = self.workload
        assert w.value_dim is not None
        return w.batch, w.query_heads, w.query_length, w.value_dim


def aligned(shape: tuple[int, ...]) -> Float32:
    """A contiguous float32 array that starts on a cache line, filled with NaN: a result that was
    never written cannot pass for a right one."""
    size = math.prod(shape)
    memory: Float32 = np.full(size + ALIGNMENT // 4, np.nan, np.float32)
    start = -memory.ctypes.data % ALIGNMENT // 4
    result: Float32 = memory[start : start + size].reshape(shape)
    return result


def rows_of_heads(x: Float32) -> Float32:
    """(B, H, L, E) -> an aligned copy (B, L, H * E)."""
    batch, heads, length, dim = x.shape
    result = aligned((batch, length, heads * dim))
    result.reshape(batch, length, heads, dim)[:] = x.transpose(0, 2, 1, 3)
    return result


def heads_of_rows(x: Float32, heads: int) -> Float32:
    """(B, L, H * E) -> a view (B, H, L, E)."""
    batch, length, width = x.shape
    result: Float32 = x.reshape(batch, length, heads, width // heads).transpose(0, 2, 1, 3)
    return result
