"""What a call does with memory: how much it takes, and where it reads and writes."""

from __future__ import annotations

import json
import mmap

import numpy as np
import pytest
from attention_cases import Array, Guarded, assert_right, query_key_value, unit_normal
from numpy.lib.stride_tricks import as_strided
from test_threads import run_script

from tvm_attention import UnsupportedError, load, scaled_dot_product_attention
from tvm_attention.operands import geometry
from tvm_attention.workload import AttentionWorkload

LONG = """
import json
from pathlib import Path
import numpy as np
import tvm_attention
from tvm_attention.reference import attention

def peak():
    status = dict(x.split(":") for x in Path("/proc/self/status").read_text().splitlines())
    return 1024 * int(status["VmHWM"].split()[0])

rng = np.random.default_rng(0)
q, k, v = (rng.standard_normal((1, 2, 16384, 64), np.float32) for _ in range(3))
tvm_attention.scaled_dot_product_attention(q[:, :, :64], k[:, :, :2048], v[:, :, :2048])
Path("/proc/self/clear_refs").write_text("5")  # the peak so far is forgotten
before = peak()
out = tvm_attention.scaled_dot_product_attention(q, k, v)
after = peak()
error = np.abs(out[:, :, ::1024] - attention(q[:, :, ::1024], k, v)).max()
assert error < 2e-6, error
print(json.dumps([after - before - out.nbytes, v.nbytes]))
"""


@pytest.mark.skipif(not hasattr(mmap, "MADV_DONTNEED"), reason="reads Linux's /proc")
def test_a_long_call_makes_no_matrix_of_scores() -> None:
    """Scores would take 2 GiB; TVM's own scratch memory of the threads is counted as well."""
    extra, value = json.loads(run_script(LONG))
    assert extra <= 1.5 * value


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("target", [None, "x86-64-v2"])
def test_the_workspace_of_a_long_call_is_at_most_the_values(
    target: str | None, causal: bool
) -> None:
    workload = AttentionWorkload(
        head_dim=64, query_heads=8, query_length=32768, key_length=32768, causal=causal
    )
    shape = (1, 8, 32768, 64)
    sizes = geometry(shape, shape, shape, enable_gqa=False)
    strides = ((8 * 32768 * 64, 32768 * 64, 64, 1),) * 4
    needed = load(workload, target).prepare(sizes, strides, 0.125).workspace_bytes
    assert needed <= 1.1 * 4 * 8 * 32768 * 64  # packed values: tiles round up


def test_more_scratch_memory_than_a_kernel_can_count_is_refused() -> None:
    """A batch whose packed values would be 2**31 elements, all of it one element repeated."""
    workload = AttentionWorkload(head_dim=64, query_length=16, key_length=2048)
    lengths = (16, 2048, 2048)
    row = np.ones(64, np.float32)
    arrays = [as_strided(row, (1 << 14, 1, n, 64), (0, 0, 0, 4)) for n in lengths]
    out = as_strided(vast(64 << 18), (1 << 14, 1, 16, 64), (4096, 4096, 256, 4))
    with pytest.raises(UnsupportedError, match=r"at most 8 GiB of scratch memory, got 8\.\d GiB"):
        load(workload, "x86-64-v2")(*arrays, out)
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
    assert_right(scaled_dot_product_attention(query, key, value), query, key, value)
    workload = AttentionWorkload(head_dim=16, value_dim=24, query_length=rows, key_length=20)
    load(workload)(query, key, value, out)
    assert_right(out, query, key, value)


@pytest.mark.parametrize("rows", [1, 12])
def test_inputs_may_be_read_only_and_are_never_written(rows: int) -> None:
    arrays = query_key_value(rows=rows)
    before = [x.copy() for x in arrays]
    for array in arrays:
        array.setflags(write=False)
    for _ in range(2):  # checked, then remembered
        found = scaled_dot_product_attention(*arrays)
        assert found.flags.writeable
        assert_right(found, *arrays)
    for array, old in zip(arrays, before, strict=True):
        np.testing.assert_array_equal(array, old)


def test_one_tensor_may_be_query_key_and_value() -> None:
    array = unit_normal(2, 4, 12, 16)
    before = array.copy()
    found = scaled_dot_product_attention(array, array, array, is_causal=True)
    assert_right(found, array, array, array, causal="top_left")
    assert not np.shares_memory(found, array)
    np.testing.assert_array_equal(array, before)


@pytest.mark.parametrize("rows", [1, 12])
def test_axes_of_size_one_may_have_any_stride(rows: int) -> None:
    def strange(array: Array) -> Array:
        pairs = zip(array.shape, array.strides, strict=True)
        return as_strided(array, array.shape, [4 * 999_983 if n == 1 else s for n, s in pairs])

    q, k, v = (unit_normal(1, 1, n, 16, seed=n) for n in (rows, 20, 20))
    found = scaled_dot_product_attention(strange(q), strange(k), strange(v))
    assert_right(found, q, k, v)
    thin = [unit_normal(2, 3, n, 1, seed=n) for n in (rows, 20, 20)]
    found = scaled_dot_product_attention(*(strange(x) for x in thin))
    assert_right(found, *thin)


@pytest.mark.parametrize("rows", [1, 12])
def test_repeated_rows_and_heads_are_read_in_place(rows: int) -> None:
    """Axes of stride 0, as expand and broadcast_to make them."""
    q, k, v = query_key_value(rows=rows)
    for axis in range(3):
        repeated = []
        for array in (q, k, v):
            first = array[tuple(slice(0, 1) if n == axis else slice(None) for n in range(3))]
            repeated.append(np.broadcast_to(first, array.shape))
        for arrays in ((repeated[0], k, v), (q, *repeated[1:]), tuple(repeated)):
            for _ in range(2):
                assert_right(scaled_dot_product_attention(*arrays), *arrays)


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
