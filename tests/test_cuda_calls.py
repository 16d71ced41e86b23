"""Packed sequences, caches, pages and torch's own calls with tensors on a GPU, on the stand-in driver."""

from __future__ import annotations

from typing import Any

import cuda_dlpack
import numpy as np
import pytest
import torch
from cuda_dlpack import Array
from test_cuda_dlpack import library
from test_cuda_driver import OnGPU, machine, on_gpu, stand_in
from torch.nn import functional as F

import tvm_attention.torch
from tvm_attention import (
    KVCache,
    MultiHeadAttention,
    PagedKVCache,
    UnsupportedError,
    attend,
    attention,
    attention_varlen,
    paged_attention,
    quantise,
    runtime,
)
from tvm_attention.arrays import TorchCudaTensors
from tvm_attention.schedules import cuda
from tvm_attention.torch import FallbackWarning, fallback, operators, routed

__all__ = ["library", "machine", "stand_in"]  # fixtures

OFFSETS = [0, 9, 9, 40], [0, 20, 33, 70]


@pytest.fixture(autouse=True)
def _small_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """Default schedules that are soon compiled, and no records."""
    monkeypatch.setattr(cuda, "_TILES", ((4, 8, 2, 2),))
    monkeypatch.setattr(cuda, "_SPLIT_KV_TILES", ((16, 1),))
    monkeypatch.setattr(cuda, "_TENSOR_TILES", ((8, 2, 4),))
    monkeypatch.setattr(runtime, "available_logs", list)


def here(tensor: Any) -> Any:
    """The same tensor on the processor."""
    return tensor.as_subclass(torch.Tensor)


def there(tensor: Any) -> Any:
    return tensor.as_subclass(OnGPU)


def assert_same(found: Any, expected: Any, error: float = 1e-5) -> None:
    assert type(found) is OnGPU
    assert torch.isfinite(expected).all()
    assert (here(found).float() - expected.float()).abs().max() <= error


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


CUDA = torch._C.DispatchKeySet(torch._C.DispatchKey.CUDA)


def test_torchs_operators_have_an_entry_for_gpus(machine: Any) -> None:
    q, k, v = on_gpu(1, 4, 9, 32), on_gpu(1, 4, 20, 32), on_gpu(1, 4, 20, 32)
    found = operators.attention.redispatch(CUDA, q, k, v, None, "bottom_right")
    assert_same(found, attention(*map(here, (q, k, v)), causal="bottom_right"))
    has = torch._C._dispatch_has_kernel_for_dispatch_key
    for name in ("attention", "scaled_dot_product_attention"):
        for key in ("CUDA", "AutogradCUDA", "AutocastCUDA"):
            assert has(f"tvm_attention::{name}", key)
    with torch._subclasses.FakeTensorMode():
        fake = torch.empty(1, 4, 9, 32, device="cuda")
        traced = torch.ops.tvm_attention.attention(fake, fake, fake)
    assert (traced.device.type, traced.shape) == ("cuda", fake.shape)


def table_of_torchs() -> str:
    return str(torch._C._dispatch_dump_table("aten::scaled_dot_product_attention"))


def test_gpus_are_routed_if_that_is_asked_for(
    machine: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, mine = table_of_torchs(), tvm_attention.torch
    q, k, v = on_gpu(1, 4, 9, 32), on_gpu(1, 4, 20, 32), on_gpu(1, 4, 20, 32)
    expected = F.scaled_dot_product_attention(*map(here, (q, k, v)))
    monkeypatch.setattr(routed, "_PLAIN", (*routed._PLAIN, OnGPU))
    with mine.enabled():
        assert fallback.served == ("cpu",)
        inside = table_of_torchs()
        with mine.enabled(cuda=True):
            assert fallback.served == ("cpu", "cuda")
            found = routed.torch_operator.redispatch(CUDA, q, k, v)
            assert_same(found, expected)
        assert table_of_torchs() == inside
    mine.enable(cuda=True)
    mine.enable()
    assert fallback.served == ("cpu",)
    mine.disable()
    assert table_of_torchs() == before


def test_calls_on_a_gpu_that_is_not_routed_say_how(machine: Any) -> None:
    q = on_gpu(1, 4, 9, 32)
    with (
        tvm_attention.torch.enabled(),
        pytest.warns(FallbackWarning, match=r"got one on cuda; enable\(cuda=True\)"),
    ):
        routed.named(*[NotOfTheProcessor(q)] * 3)


class NotOfTheProcessor(OnGPU):
    """A tensor that torch's own function computes all the same."""

    is_cpu = property(lambda self: False)  # type: ignore[assignment]

    def __new__(cls, tensor: Any) -> Any:
        return tensor.as_subclass(cls)
