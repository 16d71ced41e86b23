"""A pool of pages: sequences come, grow and go, and each attends to its own keys."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from sequence_model import Array, Model, drawn, refuses

from tvm_attention import InvalidTypeError, InvalidValueError, PagedKVCache, quantise

HEADS, DIM, VALUE_DIM = 2, 32, 64
OPTIONS = {"window": (21, 0), "softcap": 3.0, "sinks": np.array([0.5, -np.inf, 3.0, -1.0], "f4")}


def poisoned_cache(num_pages: int, page_size: int, **options: Any) -> PagedKVCache:
    """Whatever was not appended spoils what it reaches."""
    cache = PagedKVCache(num_pages, page_size, HEADS, DIM, VALUE_DIM, **options)
    for memory in (cache.key_pages, cache.value_pages):
        memory[...] = 127 if options.get("dtype") == "int8" else float("nan")
    return cache


class Both:
    """A cache and the model of what it holds, changed alike."""

    def __init__(self, cache: PagedKVCache, sequences: int) -> None:
        self.cache, self.rng = cache, np.random.default_rng(sequences)
        self.model = Model(sequences, HEADS, DIM, VALUE_DIM)
        self.numbers = [cache.allocate() for _ in range(sequences)]

    def append(self, which: list[int], n: int, counts: list[int] | None = None) -> None:
        pair = [drawn(self.rng, len(which), HEADS, n, d) for d in (DIM, VALUE_DIM)]
        self.cache.append([self.numbers[s] for s in which], *pair, lengths=counts)
        if str(self.cache.key_pages.dtype) == "int8":
            quantised = (quantise(x) for x in pair)
            pair = [numbers * scale[..., None] for numbers, scale in quantised]
        self.model.append(*pair, counts or [n] * len(which), which)

    def check(self, which: list[int], n: int, counts: Any = None, **options: Any) -> None:
        query = drawn(self.rng, len(which), 2 * HEADS, n, DIM)
        found, lse = self.cache.attend(
            [self.numbers[s] for s in which],
            query,
            query_lengths=counts,
            return_lse=True,
            **options,
        )
        self.model.check(
            query, found, lse, which=which, counts=counts, causal="bottom_right", **options
        )


@pytest.mark.parametrize("dtype", ["float32", "int8"])
@pytest.mark.parametrize("page_size", [1, 12, 16])
def test_sequences_grow_and_are_attended_to_in_any_order(page_size: int, dtype: str) -> None:
    both = Both(poisoned_cache(600 // page_size, page_size, dtype=dtype), 4)
    both.append([2, 0], 37)
    both.append([1, 2, 3], 50, [50, 11, 0])
    for _ in range(2):
        both.append([3, 1, 0], 1)
        both.check([3, 1, 0, 2], 1)
    both.check([2, 0], 37)
    both.check([1, 2, 3], 50, [50, 11, 0])
    both.check([0], 9, **OPTIONS)
    both.check([0, 1, 2, 3], 1, **OPTIONS)
    assert both.cache.lengths(both.numbers).tolist() == both.model.lengths == [39, 52, 48, 2]


def test_pages_are_used_again_and_numbers_are_not() -> None:
    both = Both(poisoned_cache(6, 16), 3)
    cache, (first, second, third) = both.cache, both.numbers
    both.append([0, 1], 40)
    assert cache.free_pages == 0
    assert cache.block_table([second, first]).tolist() == [[3, 4, 5], [0, 1, 2]]
    cache.free(first)
    assert cache.sequences == (second, third)
    assert cache.free_pages == 3
    both.append([2], 33)
    assert sorted(cache.block_table([third])[0].tolist()) == [0, 1, 2]
    both.check([2, 1], 5)
    assert cache.allocate() not in (first, second, third)
    for call in (
        lambda: cache.free(first),
        lambda: cache.lengths([first]),
        lambda: cache.attend([first], drawn(both.rng, 1, HEADS, 1, DIM)),
    ):
        refuses(InvalidValueError, f"not freed, got {first}", call)


def test_the_last_page_is_filled_and_no_more() -> None:
    both = Both(poisoned_cache(4, 16), 2)
    both.append([0, 1], 31, [31, 17])
    assert both.cache.free_pages == 0
    both.append([0, 1], 15, [1, 15])
    before = [both.cache.key_pages.tobytes(), both.cache.value_pages.tobytes()]
    for counts, needed in (([1, 0], 1), ([1, 40], 4)):
        refuses(
            InvalidValueError,
            f"at most the 0 that are free to be needed, got {needed}",
            lambda c=counts: both.append([0, 1], 40, c),
        )
    assert [both.cache.key_pages.tobytes(), both.cache.value_pages.tobytes()] == before
    assert both.cache.lengths(both.numbers).tolist() == [32, 32]
    both.check([0, 1], 3)


def test_no_sequences_and_sequences_without_keys() -> None:
    cache = poisoned_cache(4, 16)
    empty, none = cache.allocate(), np.empty((0, HEADS, 5, DIM), np.float32)
    cache.append([], none, np.empty((0, HEADS, 5, VALUE_DIM), np.float32))
    assert cache.attend([], none).shape == (0, HEADS, 5, VALUE_DIM)
    found, lse = cache.attend([empty], np.ones((1, HEADS, 5, DIM), np.float32), return_lse=True)
    assert (found == 0).all()
    assert np.isneginf(lse).all()


def test_torch_and_head_scales() -> None:
    torch = pytest.importorskip("torch")
    rng, scale = np.random.default_rng(5), np.array([0.02, 0.03], np.float32)
    cache = poisoned_cache(
        8, 16, dtype="int8", like=torch.empty(0), key_scale=scale, value_scale=scale
    )
    model, numbers = Model(2, HEADS, DIM, VALUE_DIM), [cache.allocate() for _ in range(2)]
    pair = [drawn(rng, 2, HEADS, 40, d) for d in (DIM, VALUE_DIM)]
    rows_first = (torch.from_numpy(x).transpose(1, 2).to(torch.bfloat16) for x in pair)
    cache.append(numbers, *rows_first, lengths=[40, 3], layout="bshd")
    kept = [torch.from_numpy(x).to(torch.bfloat16).float().numpy() for x in pair]
    kept = [quantise(x, scale)[0] * scale[:, None, None] for x in kept]
    model.append(*kept, [40, 3], range(2))
    query = drawn(rng, 2, HEADS, 1, DIM)
    found = cache.attend(numbers, torch.from_numpy(query))
    model.check(query, found.numpy(), causal="bottom_right")


def test_what_does_not_fit() -> None:
    cache = poisoned_cache(4, 16)
    number = cache.allocate()
    key, value = (np.ones((2, HEADS, 3, d), np.float32) for d in (DIM, VALUE_DIM))
    calls: list[tuple[type[Exception], str, Any]] = [
        (InvalidValueError, "each but once", lambda: cache.append([number, number], key, value)),
        (InvalidValueError, "not freed, got 7", lambda: cache.append([number, 7], key, value)),
        (InvalidValueError, r"key: expected .*\(1, 2, 3, 32\)", lambda: cache.append([number], key, value)),
        (InvalidTypeError, "sequences: expected a list", lambda: cache.append(number, key, value)),
        (InvalidTypeError, "sequences: expected whole", lambda: cache.attend([0.5], key)),
        (InvalidValueError, "batch: expected one .* query 2, key 1", lambda: cache.attend([number], key)),
        (InvalidValueError, "page_size: expected 1 to", lambda: PagedKVCache(4, 0, 1, 8)),
    ]  # fmt: skip
    for error, words, call in calls:
        refuses(error, words, call)
    assert cache.lengths([number]).tolist() == [0]
    assert cache.free_pages == 4


def test_nothing_is_read_twice_from_a_table_of_its_own() -> None:
    """The table that is returned is the caller's to change."""
    both = Both(poisoned_cache(4, 16), 1)
    both.append([0], 40)
    table: Array = both.cache.block_table(both.numbers)
    table[...] = 3
    both.check([0], 2)
