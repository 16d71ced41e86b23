"""Where kernels read and write, and how much scratch memory they take."""

from __future__ import annotations

import mmap

import numpy as np
import pytest
from attention_cases import (
    Array,
    Guarded,
    assert_right,
    kernel_of,
    query_key_value,
    unit_normal,
)
from attention_variants import prepared
from numpy.lib.stride_tricks import as_strided

from tvm_attention import UnsupportedError, explain, load
from tvm_attention.target import named_target
from tvm_attention.workload import AttentionWorkload


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("target", [None, "x86-64-v2"])
def test_the_workspace_of_a_long_call_is_at_most_the_values(
    target: str | None, causal: bool
) -> None:
    workload = AttentionWorkload(
        head_dim=64, query_heads=8, query_length=32768, key_length=32768, causal=causal
    )
    shape = (1, 8, 32768, 64)
    strides = ((8 * 32768 * 64, 32768 * 64, 64, 1),) * 4
    needed = prepared(load(workload, target), (shape,) * 4, strides).workspace_bytes
    assert needed <= 1.25 * 4 * 8 * 32768 * 64  # packed values: tiles round up


def test_more_scratch_memory_than_a_kernel_can_count_is_refused() -> None:
    """A batch whose packed values would be 2**31 elements, all of it one element repeated."""
    workload = AttentionWorkload(head_dim=64, query_length=16, key_length=2048)
    target = named_target("x86-64-v2")
    packed = explain(workload, target).source.candidate.replace(pack_value=1)
    lengths = (16, 2048, 2048)
    row = np.ones(64, np.float32)
    arrays = [as_strided(row, (1 << 14, 1, n, 64), (0, 0, 0, 4)) for n in lengths]
    out = as_strided(vast(64 << 18), (1 << 14, 1, 16, 64), (4096, 4096, 256, 4))
    with pytest.raises(UnsupportedError, match=r"at most 8 GiB of scratch memory, got 8\.\d GiB"):
        kernel_of(workload, packed, target)(*arrays, out)
    assert not out[0].any()


def vast(elements: int) -> Array:
    """That many float32 of memory of which only the pages that are written come to exist."""
    try:
        return np.frombuffer(mmap.mmap(-1, 4 * elements, mmap.MAP_PRIVATE), np.float32)
    except OSError:
        pytest.skip(f"this machine gives no {4 * elements >> 30} GiB of address space")


@pytest.mark.parametrize("rows", [1, 20])
@pytest.mark.parametrize("axis", ["batch", "head", "row"])
def test_offsets_past_two_to_the_31(axis: str, rows: int) -> None:
    """Each tensor spread over more than 2**31 elements, 2**33 bytes, along one of its axes."""
    far = 2**31 + 64
    places = {"batch": (2, 1, rows, 40), "head": (1, 2, rows, 40), "row": (1, 1, 2, 3)}
    batch, heads, rows, keys = places[axis]
    workload = AttentionWorkload(
        head_dim=16, batch=batch, query_heads=heads, query_length=rows, key_length=keys
    )
    arrays = []
    for n, length in enumerate((rows, keys, keys, rows)):
        shape = (batch, heads, length, 16)
        strides = [4 * heads * length * 16, 4 * length * 16, 64, 4]
        strides[["batch", "head", "row"].index(axis)] = 4 * far
        reach = sum((c - 1) * s for c, s in zip(shape, strides, strict=True)) // 4
        arrays.append(as_strided(vast(reach + 1), shape, strides))
        arrays[-1][...] = unit_normal(*shape, seed=n)
    query, key, value, out = arrays
    out[...] = np.nan
    load(workload)(query, key, value, out)
    assert_right(out, query, key, value)


@pytest.mark.parametrize("rows", [1, 12])
@pytest.mark.parametrize("offset", [1, 2, 3, 4, 12])
def test_addresses_that_are_not_aligned(offset: int, rows: int) -> None:
    placed = []
    for array in (*query_key_value(rows=rows), np.full((2, 4, rows, 24), np.nan, np.float32)):
        memory = np.zeros(array.nbytes + 128, np.uint8)
        start = -memory.ctypes.data % 64 + offset
        view = memory[start : start + array.nbytes].view(np.float32).reshape(array.shape)
        view[...] = array
        assert view.ctypes.data % 64 == offset
        placed.append(view)
    query, key, value, out = placed
    workload = AttentionWorkload(head_dim=16, value_dim=24, query_length=rows, key_length=20)
    load(workload)(query, key, value, out)
    assert_right(out, query, key, value)


@pytest.mark.parametrize("rows", [1, 3, 40])
@pytest.mark.parametrize("keys", [1, 40, 1030])
def test_nothing_is_written_outside_the_result(rows: int, keys: int) -> None:
    workload = AttentionWorkload(head_dim=16, value_dim=24, query_length=rows, key_length=keys)
    q, k, v = query_key_value(rows=rows, keys=keys)
    inside, outside = Guarded((2, 4, rows, 24)), Guarded((2, rows + 2, 4, 24 + 5))
    load(workload)(q, k, v, inside.array)
    inside.assert_untouched_outside()
    window = outside.array[:, 1:-1, :, 2:-3].transpose(0, 2, 1, 3)
    load(workload)(q, k, v, window)
    np.testing.assert_array_equal(window, inside.array)
    window[...] = np.nan
    assert np.isnan(outside.whole).all()
