"""What a workload has to compute and to read."""

from __future__ import annotations

from typing import Any

import pytest

from tvm_attention.work import all_bytes, flops, kv_bytes
from tvm_attention.workload import AttentionWorkload


@pytest.mark.parametrize(
    ("options", "pairs"),
    [
        ({}, 4 * 6),
        ({"causal": "top_left"}, 1 + 2 + 3 + 4),
        ({"causal": "bottom_right"}, 3 + 4 + 5 + 6),
        ({"window": (0, 0)}, 4),
        ({"window": (1, 1)}, 3 + 3 + 3 + 2),
        ({"window": (-1, 0)}, 3 + 4 + 5 + 6),
        ({"window": (1, -1), "causal": "top_left"}, 1 + 2 + 2 + 2),
        ({"window": (-1, -1)}, 24),
    ],
)
def test_operations_of_the_visible_pairs(options: dict[str, Any], pairs: int) -> None:
    workload = AttentionWorkload(
        head_dim=8, value_dim=4, batch=2, query_heads=6, query_length=4, key_length=6, **options
    )
    assert flops(workload) == 2 * 2 * 6 * pairs * 12


def test_bytes_of_keys_and_values() -> None:
    size = 2 * 3 * 100 * (8 + 4)
    shape = {"head_dim": 8, "value_dim": 4, "batch": 2, "query_heads": 6, "kv_heads": 3}
    for more, item in (({}, 4), ({"dtype": "float16"}, 2), ({"kv_dtype": "int8"}, 1)):
        workload = AttentionWorkload(**shape, key_length=100, **more)
        assert kv_bytes(workload) == item * size


def test_all_tensors_are_read_or_written_once() -> None:
    workload = AttentionWorkload(
        head_dim=8, value_dim=4, batch=2, query_heads=6, kv_heads=3, query_length=4, key_length=6
    )
    query, key, value, out = 2 * 6 * 4 * 8, 2 * 3 * 6 * 8, 2 * 3 * 6 * 4, 2 * 6 * 4 * 4
    assert all_bytes(workload) == 4 * (query + key + value + out)
