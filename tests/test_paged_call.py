"""Pages of the caller's own: any page size, layout and strides, read where they lie."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from sequence_model import Array, Model, drawn, loading, refuses

import tvm_attention.attend
from tvm_attention import InvalidTypeError, InvalidValueError, UnsupportedError, paged_attention

HEADS, DIM, VALUE_DIM = 2, 32, 64
LENGTHS = [300, 0, 1, 16, 5]
GARBAGE = np.iinfo(np.int64).max


class Paged:
    """Random sequences in randomly dealt pages; all other memory is NaN, all other entries garbage."""

    def __init__(self, page_size: int, dtype: str = "float32", seed: int = 0) -> None:
        rng = self.rng = np.random.default_rng([seed, page_size])
        needed = [-(-n // page_size) for n in LENGTHS]
        numbers = rng.permutation(sum(needed) + 3)
        shape = (len(numbers), page_size, HEADS)
        self.key, self.value = (
            np.full((*shape, d), np.nan).astype(drawn(rng, 1, dtype=dtype).dtype)
            for d in (DIM, VALUE_DIM)
        )
        self.model = Model(len(LENGTHS), HEADS, DIM, VALUE_DIM)
        self.table = rng.choice([GARBAGE, -1, -GARBAGE], (len(LENGTHS), max(needed) + 2))
        for b, length in enumerate(LENGTHS):
            pair = [drawn(rng, 1, HEADS, length, d, dtype=dtype) for d in (DIM, VALUE_DIM)]
            self.model.append(*pair, [length], [b])
            own, numbers = numbers[: needed[b]], numbers[needed[b] :]
            self.table[b, : needed[b]] = own
            for j in range(length):
                for pages, new in ((self.key, pair[0]), (self.value, pair[1])):
                    pages[own[j // page_size], j % page_size] = new[0, :, j]

    def query(self, rows: int, dtype: str = "float32") -> Array:
        return drawn(self.rng, len(LENGTHS), 2 * HEADS, rows, DIM, dtype=dtype)

    def check(
        self, query: Array, pages: tuple[Array, Array], counts: Any = None, **options: Any
    ) -> None:
        passed = {n: options.pop(n) for n in ("page_layout",) if n in options}
        found, lse = paged_attention(
            query, *pages, self.table, LENGTHS, return_lse=True, query_lengths=counts, **passed,
            **options,
        )  # fmt: skip
        self.model.check(query, found, lse, counts=counts, **options)


@pytest.mark.parametrize("page_size", [1, 7, 12, 16, 48, 128])
def test_page_sizes_and_layouts(page_size: int) -> None:
    paged = Paged(page_size)
    heads_first = tuple(np.ascontiguousarray(x.swapaxes(1, 2)) for x in (paged.key, paged.value))
    for rows in (1, 9):
        query = paged.query(rows)
        paged.check(query, (paged.key, paged.value))
        paged.check(query, heads_first, page_layout="bhsd", causal="bottom_right", window=(20, 0))


@pytest.mark.parametrize("name", ["row_block values", "blocks_and_merge packed", "split_kv"])
def test_every_option_in_every_variant(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tvm_attention.attend, "load", loading(name))
    paged = Paged(16, seed=1)
    query = paged.query(2 if name == "split_kv" else 37)
    mask = np.where(paged.rng.random((len(LENGTHS), 1, 1, max(LENGTHS))) < 0.2, -np.inf, 0.5)
    slopes = np.linspace(0, 0.4, 4 * len(LENGTHS), dtype=np.float32).reshape(len(LENGTHS), 4)
    paged.check(
        query, (paged.key, paged.value), [query.shape[2], 1, 0, 2, 1], causal="bottom_right",
        window=(200, 0), softcap=3.0, sinks=np.array([0.5, -np.inf, 3.0, -1.0], np.float32),
        alibi_slopes=slopes, mask=mask.astype(np.float32), scale=-0.2,
    )  # fmt: skip


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision(dtype: str) -> None:
    paged = Paged(16, dtype)
    for rows in (1, 9):
        paged.check(paged.query(rows, dtype), (paged.key, paged.value))


def test_pages_in_any_place() -> None:
    paged = Paged(12, seed=2)
    key, value = paged.key, paged.value
    together = np.full((len(key), 2, 12, HEADS, VALUE_DIM), np.nan, np.float32)
    together[:, 0, ..., :DIM], together[:, 1] = key, value
    wide = np.full((len(key), 12, HEADS + 1, VALUE_DIM), np.nan, np.float32)
    wide[:, :, :HEADS] = value
    backwards = tuple(np.ascontiguousarray(x[::-1])[::-1] for x in (key, value))
    for pages in (
        (together[:, 0, ..., :DIM], together[:, 1]),
        (key, wide[:, :, :HEADS]),  # other strides for each: copied
        (np.asfortranarray(key), value),  # not dense: copied
        (key, np.repeat(value, 2, axis=3)[..., ::2]),
        backwards,
    ):
        for rows in (1, 9):
            paged.check(paged.query(rows), pages)


def test_torch_and_layout() -> None:
    torch = pytest.importorskip("torch")
    paged = Paged(16, seed=3)
    query = paged.query(5)
    pages = (torch.from_numpy(x) for x in (paged.key, paged.value))
    paged.table[paged.table > 1000] = np.iinfo(np.int32).max
    paged.table[paged.table < -1] = np.iinfo(np.int32).min
    table = torch.from_numpy(paged.table).to(torch.int32)
    rows_first = torch.from_numpy(query).transpose(1, 2).contiguous()
    found = paged_attention(rows_first, *pages, table, torch.tensor(LENGTHS), layout="bshd")
    assert found.shape == (len(LENGTHS), 5, 2 * HEADS, VALUE_DIM)
    paged.model.check(query, found.transpose(1, 2).numpy())


def test_arguments_that_do_not_fit() -> None:
    paged = Paged(16)
    query, arrays = paged.query(3), {"key_pages": paged.key, "value_pages": paged.value}

    def call(**changes: Any) -> Any:
        given = {"block_table": paged.table, "kv_lengths": LENGTHS, **arrays, **changes}
        return lambda: paged_attention(query, **given)

    wrong = paged.table.copy()
    wrong[0, 4] = len(paged.key)
    negative = paged.table.copy()
    negative[3, 0] = -1
    calls: list[tuple[type[Exception], str, Any]] = [
        (InvalidValueError, rf"from 0 to .*, got {len(paged.key)} at \(0, 4\)", call(block_table=wrong)),
        (InvalidValueError, r"got -1 at \(3, 0\)", call(block_table=negative)),
        (InvalidValueError, "block_table: expected .batch, pages.", call(block_table=paged.table[0])),
        (InvalidTypeError, "block_table: expected whole", call(block_table=paged.table * 0.5)),
        (InvalidValueError, "kv_lengths: expected 0 to 336", call(kv_lengths=[337, 0, 1, 16, 5])),
        (InvalidValueError, "kv_lengths: expected 0 to 336", call(kv_lengths=[-1, 0, 1, 16, 5])),
        (InvalidValueError, "kv_lengths: expected shape", call(kv_lengths=LENGTHS[1:])),
        (InvalidValueError, "batch: expected one size, got query 5, key 4",
         call(kv_lengths=LENGTHS[1:], block_table=paged.table[1:])),
        (InvalidValueError, "pages: expected as many", call(value_pages=paged.value[1:])),
        (InvalidValueError, "pages: expected as many", call(value_pages=paged.value[:, :8])),
        (InvalidValueError, "key_pages: expected 4 axes", call(key_pages=paged.key[0])),
        (InvalidValueError, "at least one key",
         call(key_pages=paged.key[:, :0], value_pages=paged.value[:, :0])),
        (InvalidTypeError, "stored values: expected float32", call(value_pages=paged.value.astype("f2"))),
        (InvalidTypeError, "query: expected float16",
         call(key_pages=paged.key.astype("f2"), value_pages=paged.value.astype("f2"))),
        (UnsupportedError, "stored keys: expected float32 or",
         call(key_pages=paged.key.astype("f8"), value_pages=paged.value.astype("f8"))),
        (InvalidValueError, "page_layout", call(page_layout="pshd")),
        (InvalidValueError, "query_lengths", call(query_lengths=[4, 0, 0, 0, 0])),
    ]  # fmt: skip
    for error, words, refused in calls:
        refuses(error, words, refused)
