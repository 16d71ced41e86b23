"""Calls that are done before a second thread would have begun are left to one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from attention_cases import assert_right

from tvm_attention import KVCache, scaled_dot_product_attention
from tvm_attention.threads import launcher
from tvm_attention.worth_threads import worth_threads


def test_tasks_and_work_decide() -> None:
    assert worth_threads(4, 8, 1 << 16) == 1
    assert worth_threads(4, 9, 1) == 4
    assert worth_threads(4, 1, (1 << 16) + 1) == 4
    assert worth_threads(1, 100, 1 << 30) == 1


@pytest.fixture
def launches(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Numbers of threads that kernels are given."""
    found: list[int] = []
    from tvm_attention import kernel, steps

    def noted(threads: int, tasks: int, operations: int) -> int:
        found.append(worth_threads(threads, tasks, operations))
        return found[-1]

    for module in (kernel, steps):
        monkeypatch.setattr(module, "worth_threads", noted)
    launcher().set_num_threads(2)
    return found


def arrays(rows: int, keys: int, dim: int = 64) -> Any:
    rng = np.random.default_rng(rows * keys)
    return tuple(rng.standard_normal((1, 8, n, dim), np.float32) for n in (rows, keys, keys))


def test_a_small_call_is_computed_by_one_thread(launches: list[int]) -> None:
    for keys, threads in ((3, 1), (400, 2)):
        query, key, value = arrays(1, keys)
        for _ in range(3):  # the last is remembered
            assert_right(scaled_dot_product_attention(query, key, value), query, key, value)
        assert set(launches) == {threads}
        launches.clear()


def test_steps_of_a_cache_take_more_as_it_grows(launches: list[int]) -> None:
    query, key, value = arrays(1, 400)
    cache = KVCache(batch=1, kv_heads=8, max_length=400, head_dim=64)
    for rows in (slice(0, 3), slice(3, 4), slice(4, 399), slice(399, 400)):
        cache.append(key[:, :, rows], value[:, :, rows])
        seen = (x[:, :, : rows.stop] for x in (key, value))
        assert_right(cache.attend(query), query, *seen)
    assert launches[0] == 1
    assert launches[-1] == 2
