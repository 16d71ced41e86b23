"""Splits of the keys of a decoding call."""

from __future__ import annotations

import pytest

from tvm_attention.operands import Geometry
from tvm_attention.splits import most_rows, splits
from tvm_attention.workload import AttentionWorkload

DECODE = AttentionWorkload(head_dim=64, query_heads=8, kv_heads=8, query_length=1)


def sizes(batch: int, heads: int, keys: int) -> Geometry:
    return Geometry(4, batch, heads, heads, 1, keys, 64, 64)


@pytest.mark.parametrize(("rows", "most"), [(1, 1), (2, 2), (3, 4), (8, 8)])
def test_rows_of_a_decoding_kernel(rows: int, most: int) -> None:
    assert most_rows(AttentionWorkload(head_dim=64, query_length=rows)) == most


@pytest.mark.parametrize(
    ("batch", "heads", "keys", "threads", "expected"),
    [
        (1, 1, 1, 4, 1),
        (1, 8, 100, 3, 1),  # too few keys for more
        (1, 1, 4096, 4, 4),  # a task for every thread
        (1, 3, 4096, 2, 2),
        (1, 1, 512, 64, 4),  # as many as the keys are worth
        (1, 8, 1 << 16, 4, 32),  # so many that a split's keys stay in cache
        (64, 8, 4096, 4, 2),
        (0, 8, 4096, 4, 2),
    ],
)
def test_splits(batch: int, heads: int, keys: int, threads: int, expected: int) -> None:
    assert splits(DECODE, sizes(batch, heads, keys), threads) == expected


def test_more_rows_make_shorter_splits() -> None:
    wide = AttentionWorkload(head_dim=64, query_heads=8, kv_heads=1, query_length=1)
    assert splits(wide, sizes(8, 8, 1 << 14), 1) == 2 * splits(DECODE, sizes(8, 8, 1 << 14), 1)
