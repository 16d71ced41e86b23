"""Whether a workload fits into memory."""

from __future__ import annotations

from dataclasses import replace

import psutil
import pytest

from tvm_attention.errors import InvalidValueError
from tvm_attention.memory_needed import require_memory, workload_bytes
from tvm_attention.random_calls import random_inputs
from tvm_attention.workload import AttentionWorkload

SMALL = AttentionWorkload(
    head_dim=8, value_dim=24, batch=3, query_heads=4, kv_heads=2, query_length=5, key_length=7
)


def test_bytes_are_those_of_the_arrays() -> None:
    inputs = random_inputs(SMALL)
    result = 4 * SMALL.batch * SMALL.query_heads * SMALL.query_length * 24
    assert workload_bytes(SMALL) == sum(x.nbytes for x in inputs) + result


def test_bytes_of_weights_and_of_what_is_stored_beside_what_is_drawn() -> None:
    query, key, value = random_inputs(SMALL)
    weights = replace(SMALL, output="weights")
    rows = 4 * SMALL.batch * SMALL.query_heads * SMALL.query_length
    inputs = query.nbytes + key.nbytes + value.nbytes
    assert workload_bytes(weights) == inputs + rows * SMALL.key_length
    for fields in ({"kv_dtype": "int8"}, {"paged": True}):
        stored = replace(SMALL, **fields)
        assert workload_bytes(stored) == inputs + key.nbytes + value.nbytes + rows * 24


def test_a_workload_that_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    needed = workload_bytes(SMALL)
    free = [needed]
    monkeypatch.setattr(
        psutil, "virtual_memory", lambda: type("Memory", (), {"available": free[0]})
    )
    require_memory(SMALL)
    free[0] = needed - 1
    with pytest.raises(InvalidValueError, match="smaller batch"):
        require_memory(SMALL)


def test_sizes_past_int64_are_refused_in_words() -> None:
    most = 2**31 - 1
    huge = AttentionWorkload(head_dim=512, query_heads=most, query_length=most, key_length=most)
    with pytest.raises(InvalidValueError, match="expected one whose") as caught:
        require_memory(huge)
    assert len(str(caught.value)) < 300
