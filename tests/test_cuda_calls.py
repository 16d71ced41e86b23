"""Packed sequences, pages and small arrays of tensors on a GPU, on the stand-in driver."""

from __future__ import annotations

from typing import Any

import cuda_dlpack
import numpy as np
import pytest
import torch
from cuda_dlpack import Array
from cuda_tensors import assert_same, here, small_tiles, there
from test_cuda_dlpack import library
from test_cuda_driver import OnGPU, machine, on_gpu, stand_in

from tvm_attention import (
    attention,
    attention_varlen,
    paged_attention,
)
from tvm_attention.arrays import TorchCudaTensors

__all__ = ["library", "machine", "small_tiles", "stand_in"]  # fixtures

OFFSETS = [0, 9, 9, 40], [0, 20, 33, 70]


def test_packed_sequences(machine: Any) -> None:
    q, k, v = on_gpu(40, 4, 32), on_gpu(70, 2, 32), on_gpu(70, 2, 32)
    options: dict[str, Any] = {"causal": "bottom_right", "return_lse": True}
    expected, sums = attention_varlen(*map(here, (q, k, v)), *OFFSETS, **options)
    offsets = [there(torch.tensor(x, dtype=torch.int32)) for x in OFFSETS]
    for given in (OFFSETS, offsets):
        out, lse = attention_varlen(q, k, v, *given, **options)
        assert_same(out, expected)
        assert torch.allclose(here(lse), sums, atol=1e-5)


@pytest.fixture
def nothing_between(machine: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is copied from the processor to the GPU or back, and nobody waits."""

    def refused(*_: Any, **__: Any) -> Any:
        raise AssertionError("expected no copies between processor and GPU")

    for way in ("uploaded", "numbers"):
        monkeypatch.setattr(TorchCudaTensors, way, refused)
    for way in ("cpu", "item", "tolist", "numpy", "__bool__", "__int__", "__index__", "nonzero"):
        monkeypatch.setattr(OnGPU, way, refused)


def whole(*numbers: Any) -> list[Any]:
    return [there(torch.tensor(x, dtype=torch.int32)) for x in numbers]


@pytest.mark.usefixtures("nothing_between")
@pytest.mark.parametrize("most", [(None, None), (31, 37)])
def test_offsets_on_the_gpu_are_read_there(most: tuple[int | None, int | None]) -> None:
    q, k, v = on_gpu(40, 4, 32), on_gpu(70, 2, 32), on_gpu(70, 2, 32)
    options: dict[str, Any] = {"causal": "bottom_right"}
    expected = attention_varlen(*map(here, (q, k, v)), *OFFSETS, **options)
    named = {"max_seqlen_q": most[0], "max_seqlen_k": most[1]}
    assert_same(attention_varlen(q, k, v, *whole(*OFFSETS), **options, **named), expected)
    beyond = whole([0, 9, 9, 99], [0, 20, 33, 1000])  # cut to the rows that there are
    assert_same(attention_varlen(q, k, v, *beyond, **options), expected)
    with pytest.raises(ValueError, match="max_seqlen_q: expected a whole number"):
        attention_varlen(q, k, v, *whole(*OFFSETS), max_seqlen_q=-1)


@pytest.mark.usefixtures("nothing_between")
def test_lengths_on_the_gpu_are_read_there() -> None:
    q, k, v = on_gpu(3, 4, 9, 32), on_gpu(3, 2, 20, 32), on_gpu(3, 2, 20, 32)
    for lengths in ([20, 7, 0], [20, 7, -3]):
        expected, sums = attention(
            *map(here, (q, k, v)), kv_lengths=[20, 7, 0], return_lse=True, causal="bottom_right"
        )
        out, lse = attention(
            q, k, v, kv_lengths=whole(lengths)[0], return_lse=True, causal="bottom_right"
        )
        assert_same(out, expected)
        assert torch.equal(here(lse).isinf(), sums.isinf())
    with pytest.raises(ValueError, match=r"kv_lengths: expected shape \(3,\)"):
        attention(q, k, v, kv_lengths=whole([1, 2])[0])


@pytest.mark.usefixtures("nothing_between")
def test_pages_and_query_lengths_on_the_gpu_are_read_there() -> None:
    q, k, v = on_gpu(2, 4, 3, 32), on_gpu(6, 12, 2, 32), on_gpu(6, 12, 2, 32)
    table, lengths, queries = [[3, 99, 5], [1, -4, 0]], [36, 12], [3, 2]
    plain = [[3, 5, 5], [1, 0, 0]]  # what of it is read, numbers of no page cut
    options: dict[str, Any] = {"causal": "bottom_right", "return_lse": True}
    expected, sums = paged_attention(
        *map(here, (q, k, v)), plain, lengths, query_lengths=queries, **options
    )
    numbers = whole(table, lengths, queries)
    out, lse = paged_attention(q, k, v, *numbers[:2], query_lengths=numbers[2], **options)
    assert_same(out, expected)
    assert (here(out)[1, :, 2] == 0).all()
    assert torch.equal(here(lse).isinf(), sums.isinf())


def test_numbers_may_be_on_either_side(machine: Any) -> None:
    q, k, v = on_gpu(2, 4, 1, 32), on_gpu(6, 16, 2, 32), on_gpu(6, 16, 2, 32)
    table, lengths = [[3, 0, 5], [1, 4, 0]], [41, 17]
    expected = paged_attention(*map(here, (q, k, v)), table, lengths)
    assert_same(paged_attention(q, k, v, *whole(table), lengths), expected)
    assert_same(paged_attention(q, k, v, table, *whole(lengths)), expected)
    q, k, v = on_gpu(40, 4, 32), on_gpu(70, 2, 32), on_gpu(70, 2, 32)
    expected = attention_varlen(*map(here, (q, k, v)), *OFFSETS)
    assert_same(attention_varlen(q, k, v, *whole(OFFSETS[0]), OFFSETS[1]), expected)
    with pytest.raises(ValueError, match="as many sequences each, got 3 and 1"):
        attention_varlen(q, k, v, *whole(OFFSETS[0], [0, 70]))


def test_packed_sequences_of_another_library(library: Any) -> None:
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal((n, 2, 32)).astype("float32") for n in (40, 70, 70)]
    found = attention_varlen(*map(Array, arrays), *OFFSETS, causal="bottom_right")
    assert type(found) is cuda_dlpack.Array
    expected = attention_varlen(*arrays, *OFFSETS, causal="bottom_right")
    assert np.abs(found.held - expected).max() < 1e-5


def test_pages(machine: Any) -> None:
    q, k, v = on_gpu(2, 4, 1, 32), on_gpu(6, 16, 2, 32), on_gpu(6, 16, 2, 32)
    table, lengths = [[3, 0, 5], [1, 4, 0]], [41, 17]
    expected = paged_attention(*map(here, (q, k, v)), table, lengths)
    assert_same(paged_attention(q, k, v, table, lengths), expected)
    numbers = [there(torch.tensor(x, dtype=torch.int32)) for x in (table, lengths)]
    assert_same(paged_attention(q, k, v, *numbers), expected)


def test_sinks_and_slopes_on_the_gpu_stay_there(
    machine: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    q, k, v = on_gpu(1, 4, 9, 32), on_gpu(1, 2, 20, 32), on_gpu(1, 2, 20, 32)
    sinks, slopes = torch.randn(4), torch.rand(4)
    expected = attention(*map(here, (q, k, v)), sinks=sinks, alibi_slopes=slopes)
    assert_same(attention(q, k, v, sinks=sinks, alibi_slopes=slopes), expected)

    def refused(*_: Any) -> Any:
        raise AssertionError("expected no copies between processor and GPU")

    for way in ("uploaded", "numbers"):
        monkeypatch.setattr(TorchCudaTensors, way, refused)
    assert_same(attention(q, k, v, sinks=there(sinks), alibi_slopes=there(slopes)), expected)
    with pytest.raises(ValueError, match=r"sinks: expected shape \(4,\)"):
        attention(q, k, v, sinks=there(torch.randn(3)))
