"""What lowering makes of a decoding kernel: keys and values read by one loop each, and asked for ahead."""

from __future__ import annotations

import re

import pytest
from attention_variants import decode_candidate

from tvm_attention.lowering import lower
from tvm_attention.schedules import x86
from tvm_attention.workload import AttentionWorkload

MACHINE = x86.MACHINES["x86-64-v3"]
WORKLOAD = AttentionWorkload(head_dim=64, query_heads=4, kv_heads=1, query_length=1)


def lowered(prefetch: int, workload: AttentionWorkload = WORKLOAD) -> str:
    candidate = decode_candidate(4).replace(prefetch=prefetch)
    return str(lower(x86.build(workload, MACHINE, candidate).mod["main"], workload).main.script())


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_every_read_is_asked_for_once_however_many_rows_use_it(dtype: str) -> None:
    workload = AttentionWorkload(
        head_dim=64, dtype=dtype, query_heads=4, kv_heads=1, query_length=1
    )
    candidate = decode_candidate(4)
    asked = [line for line in lowered(2, workload).splitlines() if "llvm.prefetch" in line]
    names = [re.search(r"address_of\((\w+)\[", line)[1] for line in asked]  # type: ignore[index]
    assert names.count("key") == candidate["score_keys"]
    assert names.count("value") == candidate["value_vectors"]
    assert len(names) == candidate["score_keys"] + candidate["value_vectors"]


def test_nothing_is_asked_for_by_a_candidate_that_says_so() -> None:
    assert "llvm.prefetch" not in lowered(0)


def test_keys_and_values_are_read_by_one_loop_each() -> None:
    """Scores and their maximum, weights, their sum and their products with values: two loops."""
    over_keys = [x for x in lowered(1).splitlines() if " for " in x and "key_length" in x]
    assert len(over_keys) == 2, over_keys
