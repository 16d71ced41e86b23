"""Kernels' parallel loops: the launch function reads how many iterations they have, so that a call of few
threads wakes no others, and workers take tasks until none is left."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest
from attention_cases import assert_right, inputs, poisoned
from attention_variants import decode_candidate, lanes_of, prefill_candidate
from parallel_kernels import GroupEnvironment

from tvm_attention.compiler import CompiledKernel, build_module
from tvm_attention.kernel import Kernel
from tvm_attention.kernel_source import KernelSource
from tvm_attention.schedules import Candidate
from tvm_attention.target import detect_target
from tvm_attention.threads import launcher
from tvm_attention.workload import AttentionWorkload

_TASK = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)
_LAUNCH = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int)
PREFILL = AttentionWorkload(
    head_dim=32, query_heads=3, query_length=70, key_length=70, causal="top_left"
)
DECODING = AttentionWorkload(head_dim=32, query_heads=2, query_length=1, key_length=600)


VARIANTS = ["row_block", "blocks_and_merge", "running", "split_kv"]
Runner = Callable[[int], Sequence[int]]  # of so many workers, those to run, in that order


def compiled_for(
    name: str, workload: AttentionWorkload, run: Runner, found: list[int]
) -> tuple[CompiledKernel, Candidate, object]:
    """A kernel whose launch runs workers one after the other, and notes what the one in threads/launch.ll
    would read; the last of the three must be kept alive."""
    target = detect_target()
    candidate = decode_candidate(1)
    if name != "split_kv":
        candidate = prefill_candidate(name, lanes_of(target), 32, masked=True)
        candidate = candidate.replace(pack_value=1)  # a loop of its own

    def launch(task: int, closure: int, asked: int) -> int:
        assert asked == 0
        found.append(ctypes.c_int32.from_address(closure).value)
        environment = GroupEnvironment(None, found[-1])
        here = ctypes.addressof(environment)
        return max(_TASK(task)(n, here, closure) for n in run(found[-1]))

    callback = _LAUNCH(launch)
    module: Any = build_module(workload, target, candidate)
    module["bind_launch"](ctypes.cast(callback, ctypes.c_void_p).value)
    return CompiledKernel(module["main"], module["workspace"], module), candidate, callback


@pytest.mark.parametrize("name", VARIANTS)
def test_the_closure_begins_with_the_number_of_iterations(name: str) -> None:
    workload = DECODING if name == "split_kv" else PREFILL
    found: list[int] = []
    compiled, candidate, _kept = compiled_for(name, workload, range, found)
    query, key, value = inputs(workload)
    for threads in (1, 3):
        kernel = Kernel(workload, KernelSource(candidate, None, "", ()), compiled, threads)
        found.clear()
        assert_right(kernel(query, key, value), query, key, value, causal=workload.causal)
        assert set(found) == {threads}


@pytest.mark.parametrize(
    ("name", "causal"), [*product(VARIANTS[:3], (None, "top_left")), ("split_kv", None)]
)
def test_a_worker_does_what_the_others_leave(name: str, causal: str | None) -> None:
    """One worker alone computes everything, whichever it is."""
    workload = DECODING if name == "split_kv" else replace(PREFILL, causal=causal)
    order: list[int] = []
    compiled, candidate, _kept = compiled_for(name, workload, lambda _: order, [])
    kernel = Kernel(workload, KernelSource(candidate, None, "", ()), compiled, 3)
    query, key, value = inputs(workload)
    for order[:] in ([0], [1], [2], [2, 0, 1]):
        out = poisoned(query.shape)
        kernel(query, key, value, out=out)
        assert_right(out, query, key, value, causal=causal)


@pytest.mark.parametrize("iterations", [-3, 0, 1, 2, 4, 9])
def test_no_more_tasks_than_iterations_or_threads(iterations: int) -> None:
    launcher().set_num_threads(4)
    tasks = min(max(iterations, 1), launcher().max_threads())  # of OpenMP there may be fewer
    closure = np.array([iterations, 77], np.int32)
    seen: list[int] = []

    def task(number: int, environment: int, _: int) -> int:
        seen.append(number)
        assert GroupEnvironment.from_address(environment).num_task == tasks
        return 0

    callback = _TASK(task)
    launch = _LAUNCH(launcher().counted_address)
    assert launch(ctypes.cast(callback, ctypes.c_void_p).value, closure.ctypes.data, 0) == 0
    assert sorted(seen) == list(range(tasks))
