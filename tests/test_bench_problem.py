"""The benchmark's problems are calls of their workloads, in memory that is fair to all."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from benchmark_results import TINY, TINY_DECODE

from bench.problem import Problem, aligned, heads_of_rows, rows_of_heads
from tvm_attention.arrays import NumPyArrays
from tvm_attention.call import Call
from tvm_attention.operands import geometry
from tvm_attention.options import opened_options
from tvm_attention.suites import suite
from tvm_attention.work import kv_bytes
from tvm_attention.workload import AttentionWorkload

NO_OPTIONS = dict.fromkeys(
    ("mask", "causal", "window", "softcap", "alibi_slopes", "sinks", "kv_lengths")
)

CAUSAL = AttentionWorkload(head_dim=8, causal=True, query_length=9, key_length=9)
WINDOW = AttentionWorkload(head_dim=8, causal=True, query_length=20, key_length=20, window=(3, -1))


@pytest.mark.parametrize("name", ["core", "decode", "masked", "lowprec", "long"])
def test_problems_are_calls_of_their_workloads(name):
    """A mask that is laid out otherwise, say, would be served by another kernel than is named."""
    for workload in suite(name).values():
        small = replace(
            workload,
            query_length=min(workload.query_length, 24),
            key_length=min(workload.key_length, 32),
            query_heads=workload.group,
            kv_heads=1,
        )
        problem = Problem.of(small)
        inputs = (problem.query, problem.key, problem.value)
        if small.kv_dtype is None:
            sizes = geometry(*(x.shape for x in inputs), enable_gqa=True)
            options = opened_options(
                NumPyArrays(), sizes, query_dtype=small.dtype, scale=None,
                **{**NO_OPTIONS, **problem.options},
            )  # fmt: skip
            call = Call.of(sizes, options, small.dtype)
            assert call.workload().kernel_features == small.kernel_features
        assert problem.key_value.nbytes == kv_bytes(small)


def test_a_mask_is_all_that_hides_keys_but_what_is_left_out():
    workload = replace(WINDOW, mask="bool", mask_dense=True)
    problem = Problem.of(workload)
    causal, window = np.tril(np.ones((20, 20), bool)), np.triu(np.ones((20, 20), bool), -3)
    np.testing.assert_array_equal(
        np.broadcast_to(problem.mask(), problem.scores),
        np.broadcast_to(problem.options["mask"] & causal & window, problem.scores),
    )
    rest = problem.mask(natively={"causal", "window"})
    np.testing.assert_array_equal(rest, problem.options["mask"])
    assert Problem.of(TINY).mask() is None
    assert Problem.of(CAUSAL).mask(natively={"causal"}) is None


def test_a_problem_is_aligned_and_key_and_value_are_neighbours():
    problem = Problem.of(TINY_DECODE)
    for array in (problem.query, problem.key, problem.key_value):
        assert array.ctypes.data % 64 == 0
    assert problem.key_value.nbytes == kv_bytes(TINY_DECODE)
    assert np.shares_memory(problem.key, problem.key_value)
    assert np.shares_memory(problem.value, problem.key_value)
    assert not np.isnan(problem.key_value).any()
    assert np.isnan(aligned((3, 5))).all()


def test_rows_and_heads_are_the_same_numbers():
    query = Problem.of(TINY).query
    assert rows_of_heads(query).shape == (1, 20, 16)
    np.testing.assert_array_equal(heads_of_rows(rows_of_heads(query), 2), query)
