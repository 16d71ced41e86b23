"""A cache of one tensor a batch: what is appended is attended to, and nothing else."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from sequence_model import Array, Model, drawn, loading, refuses

import tvm_attention.attend
from tvm_attention import InvalidTypeError, InvalidValueError, KVCache, UnsupportedError, quantise

torch = pytest.importorskip("torch")

BATCH, HEADS, MOST, DIM, VALUE_DIM = 3, 2, 300, 32, 64
SLOPES = np.linspace(0.0, 0.4, BATCH * 4, dtype=np.float32).reshape(BATCH, 4)
OPTIONS = {"window": (50, 0), "softcap": 3.0, "alibi_slopes": SLOPES,
           "sinks": np.array([0.5, -np.inf, 3.0, -1.0], np.float32), "scale": 0.3}  # fmt: skip
EACH = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}
# New rows, how many of them each element has (all: None): prefill, chunks, decoding, until one is full.
STEPS = [
    (210, [210, 0, 33]),
    (40, None),
    (1, None),
    (1, [1, 0, 1]),
    (7, [7, 2, 0]),
    (41, [41, 0, 5]),
]


def poisoned_cache(**options: Any) -> KVCache:
    """Whatever was not appended spoils what it reaches."""
    cache = KVCache(BATCH, HEADS, MOST, DIM, VALUE_DIM, **options)
    for memory in (cache.key, cache.value):
        memory[...] = 127 if options.get("dtype") == "int8" else float("nan")
    return cache


def to_kind(array: Array, kind: str) -> Any:
    if kind == "numpy":
        return array
    tensor = torch.from_numpy(array.astype(np.float32))
    return tensor.to(EACH[str(array.dtype)])


def to_numpy(array: Any, dtype: str) -> Array:
    """float32 numbers back in the dtype they were."""
    if isinstance(array, np.ndarray):
        return array
    return drawn(np.random.default_rng(), 0, dtype=dtype).dtype.type(array.float().numpy())


def new(rng: np.random.Generator, n: int, dtype: str = "float32") -> tuple[Array, Array]:
    return (
        drawn(rng, BATCH, HEADS, n, DIM, dtype=dtype),
        drawn(rng, BATCH, HEADS, n, VALUE_DIM, dtype=dtype),
    )


@pytest.mark.parametrize("kind", ["numpy", "torch"])
@pytest.mark.parametrize("dtype", list(EACH))
def test_prefill_chunks_and_decoding_until_it_is_full(dtype: str, kind: str) -> None:
    rng = np.random.default_rng(1)
    like = None if kind == "numpy" else torch.empty(0)
    cache, model = poisoned_cache(dtype=dtype, like=like), Model(BATCH, HEADS, DIM, VALUE_DIM)
    for n, counts in STEPS:
        key, value = new(rng, n, dtype)
        cache.append(to_kind(key, kind), to_kind(value, kind), lengths=counts)
        model.append(key, value, counts or [n] * BATCH, range(BATCH))
        assert cache.lengths.tolist() == model.lengths
        query = drawn(rng, BATCH, 4 * HEADS, n, DIM, dtype=dtype)
        found = cache.attend(to_kind(query, kind), query_lengths=counts)
        assert type(found) is type(to_kind(query, kind))
        model.check(query, to_numpy(found, dtype), counts=counts, causal="bottom_right")
    assert max(model.lengths) == MOST == cache.max_length


@pytest.mark.parametrize(
    ("name", "rows"), [("row_block keys", 40), ("streaming packed", 40), ("split_kv", 2)]
)
@pytest.mark.parametrize("dtype", ["float32", "int8"])
def test_every_option_in_every_variant(
    name: str, rows: int, dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tvm_attention.attend, "load", loading(name))
    rng = np.random.default_rng(2)
    cache, model = poisoned_cache(dtype=dtype), Model(BATCH, HEADS, DIM, VALUE_DIM)
    key, value = new(rng, MOST)
    counts = [MOST, 0, 101]
    cache.append(key, value, lengths=counts)
    model.append(*stored(key, value, dtype), counts, range(BATCH))
    query = drawn(rng, BATCH, 2 * HEADS, rows, DIM)
    mask = rng.random((1, 1, rows, MOST)) < 0.8
    found, lse = cache.attend(query, mask=mask, return_lse=True, **OPTIONS)
    model.check(query, found, lse, mask=mask, causal="bottom_right", **OPTIONS)


def stored(key: Array, value: Array, dtype: str) -> tuple[Array, Array]:
    """The numbers that a cache has of these."""
    if dtype != "int8":
        return key, value
    pairs = [quantise(x) for x in (key, value)]
    first, second = (q * s[..., None].astype(np.float64) for q, s in pairs)
    return first, second


@pytest.mark.parametrize("group", [1, 4, 8])
@pytest.mark.parametrize("causal", [None, "top_left", "bottom_right"])
def test_groups_in_equal_and_different_lengths(group: int, causal: str | None) -> None:
    rng = np.random.default_rng(group)
    for counts in ([90] * BATCH, [90, 3, 0]):
        cache, model = poisoned_cache(), Model(BATCH, HEADS, DIM, VALUE_DIM)
        key, value = new(rng, 90)
        cache.append(key, value, lengths=counts)
        model.append(key, value, counts, range(BATCH))
        for rows in (1, 9):
            query = drawn(rng, BATCH, group * HEADS, rows, DIM)
            model.check(query, cache.attend(query, causal=causal), causal=causal)


@pytest.mark.parametrize("kind", ["numpy", "torch"])
@pytest.mark.parametrize("scales", ["token", "head", "head and token"])
def test_int8(scales: str, kind: str) -> None:
    rng = np.random.default_rng(3)
    given: dict[str, Any] = {}
    if scales != "token":
        given["key_scale"] = np.array([0.02, 0.03], np.float32)  # cuts some off
    if scales == "head":
        given["value_scale"] = np.array([0.01, 0.0], np.float32)
    like = None if kind == "numpy" else torch.empty(0)
    cache, model = (
        poisoned_cache(dtype="int8", like=like, **given),
        Model(BATCH, HEADS, DIM, VALUE_DIM),
    )
    for n, counts in ((60, [60, 0, 17]), (1, None)):
        key, value = new(rng, n)
        cache.append(to_kind(key, kind), to_kind(value, kind), lengths=counts)
        kept = []
        for name, array in (("key_scale", key), ("value_scale", value)):
            numbers, scale = quantise(array, given.get(name))
            kept.append(numbers * (scale[..., None] if scale.ndim > 1 else scale[:, None, None]))
        model.append(*kept, counts or [n] * BATCH, range(BATCH))
        for dtype in ("float32", "bfloat16") if kind == "torch" else ("float32", "float16"):
            query = drawn(rng, BATCH, 4 * HEADS, n, DIM, dtype=dtype)
            found, lse = cache.attend(to_kind(query, kind), query_lengths=counts, return_lse=True)
            model.check(
                query, to_numpy(found, dtype), np.asarray(lse), counts=counts, causal="bottom_right"
            )
    assert str(cache.key.dtype).endswith("int8")


def test_int8_memory_is_a_quarter_and_close_to_what_was_appended() -> None:
    rng = np.random.default_rng(4)
    exact, small = poisoned_cache(), poisoned_cache(dtype="int8")
    assert small.key.nbytes * 4 == exact.key.nbytes
    pair, query = new(rng, 50), drawn(rng, BATCH, HEADS, 1, DIM)
    for cache in (exact, small):
        cache.append(*pair)
    assert np.abs(exact.attend(query) - small.attend(query)).max() < 0.02


def test_layouts_and_out() -> None:
    rng = np.random.default_rng(5)
    cache, model = poisoned_cache(), Model(BATCH, HEADS, DIM, VALUE_DIM)
    key, value = new(rng, 30)
    cache.append(key.swapaxes(1, 2), value.swapaxes(1, 2), layout="bshd", lengths=[30, 2, 9])
    model.append(key, value, [30, 2, 9], range(BATCH))
    query = drawn(rng, BATCH, 2 * HEADS, 12, DIM)
    out = np.full((BATCH, 12, 2 * HEADS, VALUE_DIM), np.nan, np.float32)
    counts = [12, 2, 0]
    rows_first = np.ascontiguousarray(query.swapaxes(1, 2))
    found = cache.attend(rows_first, layout="bshd", out=out, query_lengths=counts)
    assert found is out
    model.check(query, out.swapaxes(1, 2), counts=counts, causal="bottom_right")


def test_truncated_and_appended_again() -> None:
    rng = np.random.default_rng(6)
    cache, model = poisoned_cache(), Model(BATCH, HEADS, DIM, VALUE_DIM)
    cache.append(*new(rng, 40))
    cache.truncate([40, 0, 13])
    assert cache.lengths.tolist() == [40, 0, 13]
    cache.truncate(0)
    key, value = new(rng, 20)
    cache.append(key, value)
    model.append(key, value, [20] * BATCH, range(BATCH))
    query = drawn(rng, BATCH, HEADS, 20, DIM)
    model.check(query, cache.attend(query), causal="bottom_right")
    refuses(
        InvalidValueError, "lengths: expected at most those", lambda: cache.truncate([21, 0, 0])
    )
    refuses(InvalidValueError, "lengths: expected 0 to", lambda: cache.truncate([-1, 0, 0]))
    assert cache.lengths.tolist() == [20] * BATCH


def test_an_empty_cache_gives_zeros() -> None:
    query = drawn(np.random.default_rng(7), BATCH, HEADS, 3, DIM)
    sinks = np.array([1.0, -2.0], np.float32)
    found, lse = poisoned_cache().attend(
        query, return_lse=True, sinks=sinks, query_lengths=[3, 0, 2]
    )
    assert (found == 0).all()
    assert found.shape == (BATCH, HEADS, 3, VALUE_DIM)
    np.testing.assert_array_equal(lse[0], np.repeat(sinks[:, None], 3, axis=1))
    assert np.isneginf(lse[1]).all()


@pytest.mark.parametrize("dtype", ["float32", "int8"])
def test_nothing_is_stored_where_something_does_not_fit(dtype: str) -> None:
    rng = np.random.default_rng(8)
    cache = poisoned_cache(dtype=dtype)
    cache.append(*new(rng, MOST - 1), lengths=[MOST - 1, 0, 5])
    before = [cache.key.tobytes(), cache.value.tobytes(), cache.lengths.tolist()]
    key, value = new(rng, 2)
    wrong = np.where(np.arange(VALUE_DIM) == 3, np.nan, value)
    calls: list[tuple[str, Any]] = [
        ("max_length=300 .*, got 299 and 2 more in element 0", lambda: cache.append(key, value)),
        ("value: expected", lambda: cache.append(key[:, :, :1], value[:, :1, :1])),
        ("rows: expected key and value alike", lambda: cache.append(key[:, :, :1], value)),
        (r"key: expected .*\(3, 2, 2, 32\)", lambda: cache.append(key[..., 1:], value)),
        (r"key: expected .*\(3, 2, 2, 32\)", lambda: cache.append(key[1:], value)),
        (r"key: expected", lambda: cache.append(key[0], value)),
        ("lengths: expected 0 to 2", lambda: cache.append(key, value, lengths=[0, 3, 0])),
        ("lengths: expected shape", lambda: cache.append(key, value, lengths=[0, 1])),
        ("layout", lambda: cache.append(key, value, layout="sbhd")),
    ]
    if dtype == "int8":
        calls.append(("NaN", lambda: cache.append(key, wrong.astype("f4"), lengths=[0, 1, 1])))
    for words, call in calls:
        refuses(InvalidValueError, words, call)
    half = [x.astype(np.float64) for x in (key, value)]
    refuses(InvalidTypeError, "key: expected", lambda: cache.append(*half, lengths=[0, 1, 1]))
    tensor = torch.from_numpy(key)
    refuses(InvalidTypeError, "key: expected NumPy", lambda: cache.append(tensor, value))
    assert [cache.key.tobytes(), cache.value.tobytes(), cache.lengths.tolist()] == before


def test_queries_that_do_not_fit() -> None:
    cache = poisoned_cache()
    query = drawn(np.random.default_rng(9), BATCH, HEADS, 3, DIM)
    for wrong, words in (
        (query[0], "query: expected 4 axes"),
        (query[:2], "batch: expected one size, got query 2, key 3"),
        (query[..., :5], "head dimension"),
        (np.repeat(query, 3, axis=1)[:, :5], "multiple of key heads"),
    ):
        refuses(InvalidValueError, words, lambda q=wrong: cache.attend(q))
    for lengths in ([4, 0, 0], [0, 0], [-1, 0, 0]):
        refuses(
            InvalidValueError,
            "query_lengths",
            lambda n=lengths: cache.attend(query, query_lengths=n),
        )
    refuses(InvalidTypeError, "query: expected float32", lambda: cache.attend(query.astype("f2")))
    refuses(InvalidTypeError, "expected torch", lambda: cache.attend(torch.from_numpy(query)))
    refuses(InvalidValueError, "layout", lambda: cache.attend(query, layout="shd"))


@pytest.mark.parametrize(
    ("arguments", "options", "error", "words"),
    [
        ((0, 1, 1, 1), {}, InvalidValueError, "batch: expected 1 to"),
        ((1, 1, 1, 513), {}, InvalidValueError, "head_dim: expected 1 to 512"),
        ((1, 1, 1, 8, 0), {}, InvalidValueError, "value_dim: expected 1"),
        ((1, 1.0, 1, 8), {}, InvalidTypeError, "kv_heads: expected an int"),
        ((1, 1, True, 8), {}, InvalidTypeError, "max_length: expected an int"),
        ((1, 1, 1, 8), {"dtype": "float64"}, UnsupportedError, "dtype: expected .* int8, got 'float64'"),
        ((1, 1, 1, 8), {"key_scale": [1.0]}, InvalidValueError, "key_scale: expected None unless"),
        ((1, 2, 1, 8), {"dtype": "int8", "value_scale": [1]}, InvalidValueError, "value_scale: .* shape"),
        ((1, 1, 1, 8), {"dtype": "int8", "key_scale": [-1.0]}, InvalidValueError, "at least 0"),
        ((1, 1, 1, 8), {"like": 3}, InvalidTypeError, "expected a NumPy array"),
    ],
)  # fmt: skip
def test_caches_that_there_are_not(
    arguments: tuple[Any, ...], options: dict[str, Any], error: type[Exception], words: str
) -> None:
    refuses(error, words, lambda: KVCache(*arguments, **options))
