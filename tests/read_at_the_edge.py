"""Run as a program: calls whose arrays end, or begin, where memory that may not be read begins.

A kernel that reads one element too many is ended by the system.
"""

from __future__ import annotations

import ctypes
import mmap
from itertools import product
from typing import Any

import numpy as np
from ml_dtypes import bfloat16

from tvm_attention import attention

_kept: list[mmap.mmap] = []


def at_the_edge(values: Any, end: bool) -> Any:
    """A copy of the values whose last, or first, byte is the last, or first, that may be read."""
    size = -(-values.nbytes // mmap.PAGESIZE) * mmap.PAGESIZE
    memory = mmap.mmap(-1, size + 2 * mmap.PAGESIZE)
    _kept.append(memory)
    start = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    for page in (start, start + mmap.PAGESIZE + size):
        assert ctypes.CDLL(None).mprotect(ctypes.c_void_p(page), mmap.PAGESIZE, 0) == 0
    first = mmap.PAGESIZE + (size - values.nbytes if end else 0)
    copy = np.frombuffer(memory, values.dtype, values.size, first).reshape(values.shape)
    copy[...] = values
    return copy


def call(rows: int, keys: int, end: bool, dtype: type, masked: str, head_dim: int = 16) -> None:
    rng = np.random.default_rng(0)
    q, k, v = (
        at_the_edge(rng.standard_normal((2, 2, n, d)).astype(dtype), end)
        for n, d in ((rows, head_dim), (keys, head_dim), (keys, 13 if masked == "columns" else 16))
    )
    seen = rng.random((2, 2, 1 if masked == "keys" else rows, keys)) < 0.7
    bias = np.where(seen, 0.0, -np.inf).astype(np.float32)
    if masked == "columns":  # whose rows are adjacent: the last key's lead out of it
        mask = at_the_edge(np.ascontiguousarray(seen.swapaxes(2, 3)), end).swapaxes(2, 3)
    else:
        mask = None if masked == "none" else at_the_edge(bias if masked == "float" else seen, end)
    more = {"kv_lengths": [keys - 1, keys], "window": (keys, 3)} if masked != "keys" else {}
    out = at_the_edge(np.full((*q.shape[:3], v.shape[3]), np.nan, q.dtype), end)
    attention(q, k, v, mask=mask, out=out, **more)
    assert np.isfinite(out.astype(np.float32)).all()


if __name__ == "__main__":
    wide, half = np.float32, np.float16
    kinds = [(wide, masked) for masked in ("none", "keys", "bool", "float", "columns")]
    kinds.append((half, "bool"))
    for rows, (dtype, masked), end in product((13, 1), kinds, (True, False)):
        print(rows, dtype.__name__, masked, end, flush=True)
        call(rows, 21, end, dtype, masked)
    for end, head_dim in product((True, False), (15, 40)):  # of odd widths, and by the matrix unit
        print(70, "bfloat16", end, head_dim, flush=True)
        call(70, 85, end, bfloat16, "columns", head_dim)
