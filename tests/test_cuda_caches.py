"""Layers, softmax rows and caches of tensors on a GPU, on the stand-in driver."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from cuda_dlpack import Array
from cuda_tensors import assert_same, here, small_tiles, there
from test_cuda_dlpack import library
from test_cuda_driver import OnGPU, machine, on_gpu, stand_in

from tvm_attention import (
    KVCache,
    MultiHeadAttention,
    PagedKVCache,
    UnsupportedError,
    attend,
    attention,
    quantise,
)

__all__ = ["library", "machine", "small_tiles", "stand_in"]  # fixtures


def test_softmax_rows_on_a_gpu(machine: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fewer keys than columns at a time, more, and as many twice."""
    monkeypatch.setattr(attend, "UNITS", 32)
    for keys in (20, 70, 64):
        q, k, v = on_gpu(2, 4, 9, 32), on_gpu(2, 2, keys, 32), on_gpu(2, 2, keys, 32)
        options: dict[str, Any] = {
            "causal": "bottom_right",
            "return_weights": True,
            "sinks": [0.5] * 4,
        }
        expected, rows = attention(*map(here, (q, k, v)), **options)
        out, weights = attention(q, k, v, **options)
        assert_same(out, expected)
        assert_same(weights, rows)
        assert weights.is_contiguous()
    flat = q[0, 0], k[0, 0], v[0, 0]
    _, rows = attention(*map(here, flat), return_weights=True)
    assert_same(attention(*flat, return_weights=True)[1], rows)


def test_softmax_rows_of_other_libraries_on_a_gpu_are_refused(library: Any) -> None:
    q = Array(np.zeros((1, 2, 3, 32), "float32"))
    with pytest.raises(UnsupportedError, match="return_weights: expected torch tensors"):
        attention(q, q, q, return_weights=True)


def test_a_layer_on_a_gpu(machine: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attend, "UNITS", 32)
    weights = [torch.randn(64, 48) / 7 for _ in range(3)] + [torch.randn(48, 64) / 8]
    x = torch.randn(2, 9, 48)
    layers = [MultiHeadAttention(*map(to, weights), num_heads=2) for to in (there, here)]
    for options in ({"causal": "bottom_right"}, {"kv_lengths": [9, 4]}):
        found, expected = (
            layer(to(x), return_weights=True, **options)
            for layer, to in zip(layers, (there, here), strict=True)
        )
        for one, other in zip(found, expected, strict=True):
            assert_same(one, other, 1e-4)
    with pytest.raises(UnsupportedError, match="cuda:1 like the query"):
        layers[0](x)
    with pytest.raises(UnsupportedError, match="cuda:1 like the query"):
        MultiHeadAttention(there(weights[0]), *weights[1:], num_heads=2)


@pytest.mark.parametrize(
    ("dtype", "error"), [("float32", 1e-5), ("float16", 2e-3), ("int8", 2e-5), ("int8 heads", 2e-5)]
)
def test_a_cache_on_a_gpu(machine: Any, dtype: str, error: float) -> None:
    options: dict[str, Any] = {}
    if dtype == "int8 heads":
        options = {"key_scale": [0.02, 0.03], "value_scale": [0.03, 0.0]}
    stored = dtype.split()[0]
    given = torch.float16 if stored == "float16" else torch.float32
    caches = [
        KVCache(2, 2, 64, 32, dtype=stored, like=like, **options)
        for like in (on_gpu(1), torch.empty(0))
    ]
    assert type(caches[0].key) is OnGPU
    for memory in (caches[0].key, caches[0].value):
        memory[...] = 127 if stored == "int8" else float("nan")
    for rows, counts in ((30, [30, 7]), (1, None), (1, None)):
        k, v, q = (on_gpu(2, heads, rows, 32, dtype=given) for heads in (2, 2, 4))
        caches[0].append(k, v, lengths=counts)
        caches[1].append(here(k), here(v), lengths=counts)
        found, expected = (
            c.attend(x, query_lengths=counts) for c, x in zip(caches, (q, here(q)), strict=True)
        )
        assert_same(found, expected, error)
    assert caches[0].lengths.tolist() == caches[1].lengths.tolist() == [32, 9]


@pytest.mark.parametrize("dtype", ["float32", "int8"])
def test_a_paged_cache_on_a_gpu(machine: Any, dtype: str) -> None:
    caches = [PagedKVCache(8, 16, 2, 32, dtype=dtype, like=x) for x in (on_gpu(1), torch.empty(0))]
    k, v, q = on_gpu(2, 2, 30, 32), on_gpu(2, 2, 30, 32), on_gpu(2, 4, 1, 32)
    results = []
    for cache, to in zip(caches, (there, here), strict=True):
        names = [cache.allocate(), cache.allocate()]
        cache.append(names, to(k), to(v), lengths=[30, 17])
        results.append(cache.attend(names, to(q)))
    assert_same(*results, 2e-5)


def test_numbers_that_are_none_show_in_an_int8_cache(machine: Any) -> None:
    """Nobody waits for a GPU to look for them."""
    numbers = on_gpu(1, 2, 3, 32)
    numbers[0, 0, 1, 5] = float("nan")
    numbers[0, 1, 2, 5] = float("inf")
    whole, scales = quantise(numbers)
    plain, expected = quantise(here(torch.where(torch.isfinite(numbers), numbers, 0.0)))
    assert (whole.dtype, type(scales)) == (torch.int8, OnGPU)
    known = torch.isfinite(here(scales))
    assert known.logical_not().nonzero().tolist() == [[0, 0, 1], [0, 1, 2]]
    assert (here(whole)[known].numpy() == plain[known.numpy()]).all()
    assert np.allclose(here(scales)[known].numpy(), expected[known.numpy()])


def test_a_cache_of_another_librarys_arrays_on_a_gpu_is_refused(library: Any) -> None:
    with pytest.raises(UnsupportedError, match="expected a torch tensor for a cache on a GPU"):
        KVCache(1, 1, 8, 32, like=Array(np.zeros(1, "float32")))
