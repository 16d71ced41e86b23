"""What lowering makes of a decoding kernel: keys and values read by one loop each, and asked for ahead."""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import takewhile

import pytest
from attention_variants import decode_candidate

from tvm_attention.lowering import lower
from tvm_attention.schedules import x86
from tvm_attention.workload import AttentionWorkload

LINE = 64  # bytes
MACHINE = x86.MACHINES["x86-64-v3"]
WORKLOAD = AttentionWorkload(head_dim=64, query_heads=4, kv_heads=1, query_length=1)


def indent(line: str) -> int:
    return len(line) - len(line.lstrip())


def under(lines: list[str], start: int) -> list[str]:
    """The lines inside the statement that begins with this one."""
    depth = indent(lines[start])
    return list(takewhile(lambda x: indent(x) > depth, lines[start + 1 :]))


def lowered(prefetch: int, workload: AttentionWorkload = WORKLOAD) -> str:
    candidate = decode_candidate(4).replace(prefetch=prefetch)
    return str(lower(x86.build(workload, MACHINE, candidate).mod["main"], workload).main.script())


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_every_line_is_asked_for_once_however_many_rows_use_it(dtype: str) -> None:
    workload = AttentionWorkload(
        head_dim=64, dtype=dtype, query_heads=4, kv_heads=1, query_length=1
    )
    candidate = decode_candidate(4)
    asked = [line for line in lowered(2, workload).splitlines() if "llvm.prefetch" in line]
    names = [re.search(r"address_of\((\w+)\[", line)[1] for line in asked]  # type: ignore[index]
    vector = MACHINE.lanes * (4 if dtype == "float32" else 2)
    lines = -(-candidate["value_vectors"] * vector // LINE) * candidate["streams"]
    assert names.count("key") == candidate["score_keys"]
    assert names.count("value") == lines
    assert len(names) == candidate["score_keys"] + lines
    first_steps = f"% {LINE // vector} == 0:"
    assert sum(first_steps in line for line in lowered(2, workload).splitlines()) > 0


def test_nothing_is_asked_for_by_a_candidate_that_says_so() -> None:
    assert "llvm.prefetch" not in lowered(0)


def test_keys_and_values_are_read_by_one_loop_each() -> None:
    """Scores and their maximum, weights, their sum and their products with values: two loops, each once
    for vectors whose lanes all have keys and once for the others."""
    loops = [x.split()[1] for x in lowered(1).splitlines() if x.strip().startswith("for ")]
    over_keys = [x for x in loops if x.endswith(("_whole", "_later"))]
    assert [x.endswith("_whole") for x in over_keys] == [True, False] * 2, loops


@pytest.mark.parametrize("ragged", [False, True])
def test_only_vectors_that_are_not_whole_are_clamped(ragged: bool) -> None:
    """Clamps of the keys' places are most of such a loop's scalar instructions."""
    lines = lowered(1, replace(WORKLOAD, ragged=ragged)).splitlines()
    whole = [n for n, x in enumerate(lines) if " for " in x and "_whole" in x]
    assert len(whole) == 2
    for start in whole:
        body = under(lines, start)
        assert any("key[" in x or "value[" in x for x in body)
        # LLVM knows that a minimum with the greatest integer is the other number.
        assert sum(x.count("T.min(") - x.count(", 2147483647)") for x in body) == 0
        assert not [x for x in body if x.strip().startswith("if ") and "key_length" in x]
        later = start + 1 + len(body)
        assert "_later" in lines[later]
        assert any("T.min(" in x for x in under(lines, later))


def test_lanes_are_added_by_shuffles_where_vectors_are_wide() -> None:
    """All of a vector of keys at once, and of the maxima and sums of a row."""
    text = lowered(0)
    sums = [line for line in text.splitlines() if "Shuffle" in line]
    of_keys, of_a_row = 2 * (MACHINE.lanes - 1), 3
    assert MACHINE.lanes == 8
    assert len(sums) == of_keys + 2 * of_a_row, text


def test_narrow_vectors_are_added_by_halves() -> None:
    machine = x86.MACHINES["x86-64-v2"]
    candidate = decode_candidate(4)
    text = str(lower(x86.build(WORKLOAD, machine, candidate).mod["main"], WORKLOAD).main.script())
    assert "Shuffle" not in text


def test_keys_beyond_the_last_are_not_multiplied() -> None:
    """Score tiles and values of lanes without a key are left out."""
    lines = lowered(0).splitlines()
    conditions = [x for x in lines if x.strip().startswith("if ") and "key_length" in x]
    assert len(conditions) == 2, conditions


def test_scores_and_weights_share_their_memory() -> None:
    names = set(re.findall(r"(\w+) = T\.alloc_buffer", lowered(0)))
    assert "SM" in names
    assert not names & {"S", "P"}


def test_a_task_ends_its_own_rows_where_keys_are_not_split() -> None:
    """The merge stands behind the workers' loop only for several splits, and in it for one."""
    lines = lowered(0).splitlines()
    [inside] = [n for n, x in enumerate(lines) if x.strip() == "if splits == 1:"]
    [behind] = [n for n, x in enumerate(lines) if x.strip() == "if splits > 1:"]
    [workers] = [n for n, x in enumerate(lines) if "T.parallel(" in x]

    assert workers < inside < behind
    assert indent(lines[inside]) > indent(lines[workers]) == indent(lines[behind])
    stores = [n for n, x in enumerate(lines) if x.strip().startswith("out[")]
    assert len(stores) == 2
    assert inside < stores[0] < behind < stores[1]
