"""Lowered kernels: tasks dealt out to any number of threads, scratch memory."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from attention_cases import assert_right, inputs, kernel_of, poisoned
from attention_variants import (
    PREFILL,
    VARIANTS,
    decode_candidate,
    lanes_of,
    prefill_candidate,
    prepared,
)

from tvm_attention.arrays import NumPyArrays
from tvm_attention.kernel import Kernel
from tvm_attention.schedules import Candidate
from tvm_attention.target import detect_target
from tvm_attention.workload import AttentionWorkload


def case_of(
    name: str, causal: str | None, batch: int, heads: int, queries: int, keys: int
) -> tuple[AttentionWorkload, Candidate]:
    case = AttentionWorkload(
        head_dim=48, value_dim=64, causal=causal, batch=batch, query_heads=heads,
        query_length=queries, key_length=keys,
    )  # fmt: skip
    if name == "split_kv":
        return case.with_lengths(4, keys), decode_candidate(4)
    return case, prefill_candidate(name, lanes_of(detect_target()), 64)


@pytest.mark.parametrize("causal", [None, "top_left"])
@pytest.mark.parametrize("name", PREFILL)
def test_every_task_is_computed_by_one_of_any_number_of_threads(
    name: str, causal: str | None
) -> None:
    """Heads that the threads share evenly or not, fewer tasks than threads, and one task."""
    for batch, heads, queries in ((1, 1, 5), (1, 3, 100), (2, 2, 33)):
        case, candidate = case_of(name, causal, batch, heads, queries, 110)
        q, k, v = inputs(case)
        one = poisoned((batch, heads, queries, 64))
        kernel_of(case, candidate, threads=1)(q, k, v, one)
        assert_right(one, q, k, v, causal=causal)
        for threads in (2, 3, 4, 5):
            out = poisoned(one.shape)
            kernel_of(case, candidate, threads=threads)(q, k, v, out)
            np.testing.assert_array_equal(out, one, err_msg=f"{threads} threads")


@pytest.mark.parametrize("causal", [None, "top_left"])
@pytest.mark.parametrize("name", PREFILL)
def test_no_task_is_computed_twice(name: str, causal: str | None) -> None:
    """The result replaces the query, of which a task reads its own rows alone: a second time it would
    read what it has written."""
    batch, heads, rows, keys = 2, 3, 300, 110
    case = AttentionWorkload(
        head_dim=64,
        causal=causal,
        batch=batch,
        query_heads=heads,
        query_length=rows,
        key_length=keys,
    )
    candidate = prefill_candidate(name, lanes_of(detect_target()), 64)
    kind = NumPyArrays()
    q, k, v = inputs(case)
    out = poisoned(q.shape)
    kernel_of(case, candidate, threads=1)(q, k, v, out)
    for threads in (1, 2, 4, 5):
        kernel = kernel_of(case, candidate, threads=threads)
        both = q.copy()
        arrays = (both, k, v, both)
        call = prepared(kernel, [x.shape for x in arrays], [kind.strides(x) for x in arrays])
        call.run(*(kind.address(x) for x in arrays))
        np.testing.assert_array_equal(both, out, err_msg=f"{threads} threads")


@pytest.mark.parametrize("causal", [None, "bottom_right"])
def test_decoding_is_right_on_any_number_of_threads(causal: str | None) -> None:
    """The keys are split differently: results differ in their roundings alone."""
    for batch, heads, keys in ((1, 1, 5), (1, 1, 700), (3, 2, 130)):
        case, candidate = case_of("split_kv", causal, batch, heads, 4, keys)
        q, k, v = inputs(case)
        for threads in (1, 2, 3, 4, 5):
            out = poisoned((batch, heads, 4, 64))
            kernel_of(case, candidate, threads=threads)(q, k, v, out)
            what = f"{keys} keys, {threads} threads"
            assert_right(out, q, k, v, causal=causal, what=what)


@pytest.mark.parametrize("name", VARIANTS)
def test_a_kernel_stays_within_the_workspace_it_asked_for(name: str) -> None:
    kind, guard = NumPyArrays(), 4096
    for threads, keys in product((1, 3), (1, 131, 700)):
        case, candidate = case_of(name, None, 2, 3, 21, keys)
        kernel = kernel_of(case, candidate, threads=threads)
        q, k, v = inputs(case)
        out = poisoned((*q.shape[:3], 64))
        arrays = (q, k, v, out)
        call = prepared(kernel, [x.shape for x in arrays], [kind.strides(x) for x in arrays])
        memory = np.full(call.workspace_bytes + 2 * guard, 0xA5, np.uint8)
        start = guard + -(memory.ctypes.data + guard) % 64
        memory[start : start + call.workspace_bytes] = 0xFF  # NaN: nothing may be taken for zero
        address = memory.ctypes.data + start
        call.main(*(kind.address(x) for x in arrays), address, *call.arguments)
        assert_right(out, q, k, v)
        assert (memory[:start] == 0xA5).all()
        assert (memory[start + call.workspace_bytes :] == 0xA5).all()


def workspace_bytes(kernel: Kernel, batch: int, heads: int, rows: int, keys: int) -> int:
    shapes = [(batch, heads, n, 64) for n in (rows, keys, keys, rows)]
    strides = [(heads * n * 64, n * 64, 64, 1) for _, _, n, _ in shapes]
    return prepared(kernel, shapes, strides).workspace_bytes


@pytest.mark.parametrize(
    "name", ["blocks_and_merge", "blocks_and_merge packed", "streaming packed"]
)
def test_workspace_grows_with_the_keys_alone(name: str) -> None:
    case = AttentionWorkload(head_dim=64, key_length=32768, query_length=32768)
    candidate = prefill_candidate(name, lanes_of(detect_target()), 64)
    kernel = kernel_of(case, candidate, threads=2)
    needed = workspace_bytes(kernel, 1, 8, 32768, 32768)
    assert needed == workspace_bytes(kernel, 1, 8, 64, 32768)
    # Copies of keys and values, and a vector or two that all workers share.
    copies = 2 * 8 * 32768 * 64 * 4 if name.endswith("packed") else 0
    assert copies <= needed <= copies + 1024
