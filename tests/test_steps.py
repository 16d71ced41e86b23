"""Decoding steps like one before, whose checks are not run again."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tvm_attention import InvalidTypeError, KVCache, UnsupportedError, reference, steps
from tvm_attention.functional import forget_calls
from tvm_attention.kernel import Kernel
from tvm_attention.prepared import PreparedCall
from tvm_attention.threads import launcher

HEADS, KV_HEADS, DIM = 4, 2, 32


def numbers(rng: np.random.Generator, heads: int, rows: int) -> np.ndarray[Any, Any]:
    return rng.standard_normal((2, heads, rows, DIM), dtype=np.float32)


class Decoder:
    """A cache, and the same keys and values as they are stored."""

    def __init__(self, dtype: str = "float32", like: Any = None) -> None:
        self.rng = np.random.default_rng(7)
        self.cache = KVCache(2, KV_HEADS, 300, DIM, dtype=dtype, like=like)
        self.like = like

    def append(self, rows: int) -> None:
        key, value = (numbers(self.rng, KV_HEADS, rows) for _ in range(2))
        self.cache.append(self.own(key), self.own(value))

    def own(self, array: np.ndarray[Any, Any]) -> Any:
        return array if self.like is None else type(self.like)(array)

    def check(self, length: int = 1, **options: Any) -> None:
        query = numbers(self.rng, HEADS, length)
        found = np.asarray(self.cache.attend(self.own(query), **options))
        keys = int(self.cache.lengths[0])
        stored = [np.asarray(x)[:, :, :keys] for x in (self.cache.key, self.cache.value)]
        if self.cache.key.dtype == np.int8:
            tensors = self.cache._tensors
            scales = (tensors.key_scale, tensors.value_scale)
            stored = [x * s[:, :, :keys, None] for x, s in zip(stored, scales, strict=True)]
        causal = options.pop("causal", "bottom_right")
        expected = reference.attended(query, *stored, causal=causal, **options).out
        assert np.abs(found - expected).max() <= 4e-6


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The numbers of keys of the steps that were taken for one like before."""
    seen: list[int] = []
    run = steps._Step.run

    def counted(self: Any, query: Any, keys: int, out: Any) -> Any:
        seen.append(keys)
        return run(self, query, keys, out)

    monkeypatch.setattr(steps._Step, "run", counted)
    return seen


@pytest.mark.parametrize("dtype", ["float32", "int8"])
@pytest.mark.parametrize("length", [1, 2])
def test_each_step_of_a_growing_cache(dtype: str, length: int, runs: list[int]) -> None:
    """Also where the number of keys reaches a power of two, and after some were forgotten."""
    decoder = Decoder(dtype)
    decoder.append(120)
    for _ in range(12):
        decoder.append(1)
        decoder.check(length)
    decoder.check(length)  # the same keys again
    decoder.cache.truncate(122)
    decoder.check(length)
    # The first step, and the first of 128 keys or more, were checked.
    assert runs == [*range(122, 128), *range(129, 133), 132, 122]


def test_steps_of_other_options_are_others(runs: list[int]) -> None:
    decoder = Decoder()
    decoder.append(90)
    ways: list[dict[str, Any]] = [
        {},
        {"scale": 0.5},
        {"softcap": 3.0},
        {"window": (70, 0)},
        {"causal": None},
    ]
    for _ in range(2):
        for way in ways:
            decoder.check(**way)
        decoder.append(1)
    assert runs == [91] * len(ways)


def test_a_window_that_was_cut_to_few_keys_grows_with_them(runs: list[int]) -> None:
    decoder = Decoder()
    decoder.append(40)
    for _ in range(5):
        decoder.check(window=(42, 0))
        decoder.append(1)
    assert runs == [42, 43, 44]  # those after the first whose window is whole


def test_threads_are_those_of_the_moment(runs: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    decoder = Decoder()
    decoder.append(257)
    prepared: list[int] = []
    original = Kernel.prepare_with

    def noted(self: Kernel, threads: int, arguments: tuple[float, ...]) -> PreparedCall:
        prepared.append(threads)
        return original(self, threads, arguments)

    for threads in (1, 2, 2, 1):
        monkeypatch.setattr(launcher(), "max_threads", lambda n=threads: n)
        decoder.check()
        monkeypatch.setattr(Kernel, "prepare_with", noted)
    assert prepared == [2, 1]
    assert runs == [257] * 3


def test_what_is_not_like_before_is_checked(runs: list[int]) -> None:
    decoder = Decoder()
    decoder.append(50)
    decoder.check()
    query = numbers(decoder.rng, HEADS, 1)
    with pytest.raises(InvalidTypeError):
        decoder.cache.attend(query.astype(np.float16))
    with pytest.raises(InvalidTypeError):
        decoder.cache.attend(query, scale=True)
    with pytest.raises(InvalidTypeError):
        decoder.cache.attend(query, window=[1])
    decoder.cache.append(*(numbers(decoder.rng, KV_HEADS, 1) for _ in range(2)), lengths=[1, 0])
    decoder.cache.attend(query)  # of two lengths now
    assert runs == []


@pytest.mark.parametrize("dtype", ["float32", "int8"])
@pytest.mark.parametrize("layout", ["bhsd", "bshd"])
def test_steps_into_arrays_of_the_caller(layout: str, dtype: str, runs: list[int]) -> None:
    decoder = Decoder(dtype)
    decoder.append(90)
    outs = [np.empty((2, HEADS, 1, DIM), np.float32) for _ in range(2)]
    for n in range(5):
        query = numbers(decoder.rng, HEADS, 1)
        expected = decoder.cache.attend(query)
        query, out = (x if layout == "bhsd" else x.swapaxes(1, 2) for x in (query, outs[n % 2]))
        out[...] = np.nan
        assert decoder.cache.attend(query, out=out, layout=layout) is out
        np.testing.assert_array_equal(outs[n % 2], expected)
        if layout == "bshd":
            found = decoder.cache.attend(query, layout=layout)
            np.testing.assert_array_equal(found, expected.swapaxes(1, 2))
        decoder.append(1)
    assert runs == sorted([*range(91, 95)] * (2 if layout == "bhsd" else 3))


def test_results_in_the_memory_of_a_cache_are_refused_at_each_step(runs: list[int]) -> None:
    decoder = Decoder()
    query = numbers(decoder.rng, HEADS, 1)
    free = np.empty_like(query)
    decoder.append(130)
    decoder.cache.attend(query, out=free)
    memory = np.zeros(3 * query.size, np.float32)
    placed = memory[query.size : 2 * query.size].reshape(query.shape)
    for place in (1, 2 * query.size - 1):
        out = memory[place : place + query.size].reshape(query.shape)
        with pytest.raises(ValueError, match="got memory of query"):
            decoder.cache.attend(placed, out=out)
    for name in ("key", "value"):
        stored = getattr(decoder.cache, name).reshape(-1)
        last = (
            stored.size - 300 * DIM
        )  # where the last head begins, of which only so many rows are read
        for keys in (130, 140):
            end = last + keys * DIM
            shared, beyond = (
                stored[n : n + query.size].reshape(query.shape) for n in (end - 1, end)
            )
            with pytest.raises(ValueError, match=f"got memory of {name}"):
                decoder.cache.attend(query, out=shared)
            decoder.cache.attend(query, out=beyond)
            decoder.append(10 if keys == 130 else 0)
        decoder.cache.truncate(130)
    free.flags.writeable = False
    with pytest.raises(ValueError, match="writable"):
        decoder.cache.attend(query, out=free)
    assert len(runs) == 2 + 2 * 2 * 2


def test_new_records_are_seen(runs: list[int]) -> None:
    decoder = Decoder()
    decoder.append(50)
    decoder.check()
    forget_calls()
    decoder.check()
    assert runs == []
    decoder.check()
    assert runs == [50]


def test_tensors(runs: list[int]) -> None:
    torch = pytest.importorskip("torch")
    decoder = Decoder(like=torch.empty(0))
    decoder.own = torch.from_numpy  # type: ignore[method-assign]
    for _ in range(3):
        decoder.append(65)
        decoder.check()
    assert runs == [195]  # 65, then 130 past a power of two
    query = torch.zeros(2, HEADS, 1, DIM, requires_grad=True)
    with pytest.raises(UnsupportedError, match="requires grad"):
        decoder.cache.attend(query)
    runs.clear()
    plain, out = query.detach(), torch.empty(2, HEADS, 1, DIM)
    for _ in range(2):
        assert decoder.cache.attend(plain, out=out) is out
    assert runs == [195]
    with pytest.raises(UnsupportedError, match="out requires grad"):
        decoder.cache.attend(plain, out=out.requires_grad_())
