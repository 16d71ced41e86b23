"""Lengths, offsets, page tables, sinks and slopes of other libraries in a GPU's memory: computed with there,
on the stand-in driver, from the CUDA source of their kernel."""

from __future__ import annotations

from importlib.resources import files
from typing import Any

import numpy as np
import pytest
import torch
from cuda_dlpack import Array
from cuda_tensors import small_tiles
from numpy.typing import NDArray
from test_cuda_dlpack import arrays, library
from test_cuda_driver import DEVICE, Compiler, OnGPU, machine, stand_in

from tvm_attention import (
    attention,
    attention_varlen,
    paged_attention,
    reference,
)
from tvm_attention.arrays import TorchCudaTensors
from tvm_attention.cuda import compilers, numbers
from tvm_attention.cuda.dlpack_arrays import DLPackCudaArrays
from tvm_attention.cuda.numbers import Numbers

__all__ = ["library", "machine", "small_tiles", "stand_in"]  # fixtures


@pytest.fixture
def compiled(library: Any, monkeypatch: pytest.MonkeyPatch) -> Compiler:
    made = Compiler()
    monkeypatch.setattr(numbers, "compiler", lambda: made)
    return made


@pytest.fixture
def there(compiled: Compiler, monkeypatch: pytest.MonkeyPatch) -> Compiler:
    """The GPU, from which nothing is copied and for which nobody waits."""

    def refused(*_: Any) -> Any:
        raise AssertionError("expected no copies between processor and GPU")

    monkeypatch.setattr(DLPackCudaArrays, "uploaded", refused)
    monkeypatch.setattr(DLPackCudaArrays, "numbers", refused)
    return compiled


def whole(given: Any, dtype: str = "int32") -> Array:
    return Array(np.array(given, dtype))


def opened(array: Array) -> Numbers:
    q = arrays((1, 1, 1, 16))[0]
    found = DLPackCudaArrays(q).whole_numbers(array)
    assert found is not None
    return found


def read(given: Numbers) -> NDArray[Any]:
    """The stand-in's memory is the processor's."""
    return np.array(given.held.view(np.ndarray))


def test_lengths_of_another_library_are_read_there(there: Compiler) -> None:
    q, k, v = arrays((3, 4, 9, 32), (3, 2, 20, 32), (3, 2, 20, 32))
    expected = reference.attention(
        q.held, k.held, v.held, kv_lengths=np.array([20, 7, 0]), causal="bottom_right"
    )
    for dtype, given in (("int32", [20, 7, -3]), ("int64", [2**40, 7, 0]), ("uint8", [99, 7, 0])):
        found = attention(q, k, v, kv_lengths=whole(given, dtype), causal="bottom_right")
        assert np.abs(found.held - expected).max() < 1e-5
    assert there.calls == 1  # for all of them
    with pytest.raises(ValueError, match=r"kv_lengths: expected shape \(3,\)"):
        attention(q, k, v, kv_lengths=whole([1, 2]))


def test_packed_sequences_with_offsets_there(there: Compiler) -> None:
    q, k, v = arrays((40, 4, 32), (70, 2, 32), (70, 2, 32))
    offsets = [0, 9, 9, 40], [0, 20, 33, 70]
    expected = attention_varlen(q.held, k.held, v.held, *offsets, causal="bottom_right")
    found = attention_varlen(q, k, v, *map(whole, offsets), causal="bottom_right")
    assert np.abs(found.held - expected).max() < 1e-5
    beyond = (
        whole([0, 9, 9, 99]),
        whole([0, 20, 33, 1000], "int64"),
    )  # cut to the rows that there are
    found = attention_varlen(q, k, v, *beyond, causal="bottom_right")
    assert np.abs(found.held - expected).max() < 1e-5
    with pytest.raises(ValueError, match="as many sequences each, got 3 and 1"):
        attention_varlen(q, k, v, whole(offsets[0]), whole([0, 70]))


@pytest.mark.parametrize("page", [16, 12])  # keys, in units of 16 and 4
def test_pages_and_lengths_there(there: Compiler, page: int) -> None:
    q, k, v = arrays((2, 4, 3, 32), (6, page, 2, 32), (6, page, 2, 32))
    table, lengths, queries = [[3, 99, 5], [1, -4, 0]], [3 * page - 1, page], [3, 2]
    plain = [[3, 5, 5], [1, 0, 0]]  # what of it is read, numbers of no page cut
    expected, sums = paged_attention(
        q.held, k.held, v.held, plain, lengths, query_lengths=queries, causal="bottom_right",
        return_lse=True,
    )  # fmt: skip
    found, lse = paged_attention(
        q, k, v, whole(table), whole(lengths), query_lengths=whole(queries), causal="bottom_right",
        return_lse=True,
    )  # fmt: skip
    assert np.abs(found.held - expected).max() < 1e-5
    assert (found.held[1, :, 2] == 0).all()  # no query
    np.testing.assert_allclose(lse.held, sums, atol=1e-5)
    assert np.isinf(lse.held).sum() == 4


def test_no_keys_with_sinks_there(there: Compiler) -> None:
    q, k, v = arrays((1, 2, 3, 32), (1, 2, 0, 32), (1, 2, 0, 32))
    sinks = Array(np.array([1, 2], "float32"))
    out, lse = attention(q, k, v, sinks=sinks, return_lse=True)
    assert (out.held == 0).all()
    assert lse.held[0].tolist() == [[1.0] * 3, [2.0] * 3]


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_sinks_and_slopes_there(there: Compiler, dtype: str) -> None:
    q, k, v = arrays((2, 4, 9, 32), (2, 2, 20, 32), (2, 2, 20, 32))
    sinks, slopes = np.array([0.5, 1, -2, 0], dtype), np.array([0.25, 0.5, 1, 2], dtype)
    expected = reference.attention(
        q.held, k.held, v.held, sinks=sinks.astype("float32"), alibi_slopes=slopes.astype("float32")
    )
    found = attention(q, k, v, sinks=Array(sinks), alibi_slopes=Array(slopes))
    assert np.abs(found.held - expected).max() < 1e-5


@pytest.mark.usefixtures("compiled")
def test_numbers_may_be_on_either_side() -> None:
    q, k, v = arrays((2, 4, 1, 32), (6, 16, 2, 32), (6, 16, 2, 32))
    table, lengths = [[3, 0, 5], [1, 4, 0]], [41, 17]
    expected = paged_attention(q.held, k.held, v.held, table, lengths)
    for given in ((whole(table), lengths), (table, whole(lengths)), (table, lengths)):
        assert np.abs(paged_attention(q, k, v, *given).held - expected).max() < 1e-5
    q, k, v = arrays((40, 4, 32), (70, 2, 32), (70, 2, 32))
    offsets = [0, 9, 9, 40], [0, 20, 33, 70]
    expected = attention_varlen(q.held, k.held, v.held, *offsets)
    found = attention_varlen(q, k, v, whole(offsets[0]), offsets[1])
    assert np.abs(found.held - expected).max() < 1e-5


@pytest.mark.parametrize("op", ["sum", "difference", "product", "less"])
def test_what_is_done_to_numbers(there: Compiler, op: str) -> None:
    rng = np.random.default_rng(0)
    x, y = rng.integers(-50, 50, (3, 1, 4)), rng.integers(-50, 50, (5, 4))
    a, b = opened(whole(x)), opened(whole(y))
    ways = {
        "sum": lambda a, b: a + b, "difference": lambda a, b: a - b, "product": lambda a, b: a * b,
        "less": lambda a, b: a < b,
    }  # fmt: skip
    for found, expected in (
        (ways[op](a, b), ways[op](x, y)),
        (ways[op](a, 7), ways[op](x, 7)),
        (ways[op](a[:, 0], b[1:4]), ways[op](x[:, 0], y[1:4])),
        (ways[op](b[None, ::2, 1:], a[..., :1]), ways[op](y[None, ::2, 1:], x[..., :1])),
    ):
        np.testing.assert_array_equal(read(found), expected)


def test_limits_columns_and_counting(there: Compiler) -> None:
    a = opened(whole([[5, -9, 300], [7, 8, -1]], "int64"))
    assert read(a.clamp(-3, 8)).tolist() == [[5, -3, 8], [7, 8, -1]]
    assert read(a[:, 1].clip(0)).tolist() == [0, 8]
    assert read(a.counting(4)).tolist() == [0, 1, 2, 3]
    made = a.new_zeros((2, 4))
    made[:, 1], made[:, 3] = a[:, 2], -6
    assert read(made).tolist() == [[0, 300, 0, -6], [0, -1, 0, -6]]
    assert read(a.expand((2, 2, 3)).reshape(4, 3)).tolist() == [[5, -9, 300], [7, 8, -1]] * 2
    assert read(opened(whole([[2**40, -(2**40)]], "int64"))).tolist() == [[2**31 - 1, -(2**31)]]
    assert a.new_empty((0,)).clamp(0).shape == (0,)


def test_the_compiled_kernel_is_kept(there: Compiler) -> None:
    opened(whole([1, 2], "int64"))
    numbers._module.cache_clear()
    opened(whole([1, 2], "int64"))
    assert there.calls == 1


def test_it_compiles_for_gpus() -> None:
    folder = files("tvm_attention.cuda")
    text = "".join(folder.joinpath(n).read_text("utf-8") for n in ("prelude.cuh", "numbers.cuh"))
    for arch in ("sm_75", "sm_90"):
        made = compilers.compiler().machine_code(text, arch)
        assert [r.spilled_bytes for r in made.resources.values()] == [0, 0]


def test_torch_takes_lengths_of_another_library(
    machine: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = whole([3, 4], "int64")
    monkeypatch.setattr(
        torch, "from_dlpack", lambda array: torch.from_numpy(array.held).as_subclass(OnGPU)
    )
    kind = TorchCudaTensors(torch.device("cuda", DEVICE))
    assert kind.whole_numbers(given).tolist() == [3, 4]
    assert kind.whole_numbers(Array(given.held, device=0)) is None
    assert kind.floats(Array(np.ones(2, "float32"))).tolist() == [1.0, 1.0]
