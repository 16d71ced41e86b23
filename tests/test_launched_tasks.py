"""What kernels say of their parallel loops: the launch function reads how many iterations they have, so that
a call of few threads wakes no others."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import pytest
from attention_cases import assert_right, inputs
from attention_variants import decode_candidate, lanes_of, prefill_candidate
from parallel_kernels import GroupEnvironment

from tvm_attention.compiler import CompiledKernel, build_module
from tvm_attention.kernel import Kernel
from tvm_attention.kernel_source import KernelSource
from tvm_attention.target import detect_target
from tvm_attention.threads import launcher
from tvm_attention.workload import AttentionWorkload

_TASK = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)
_LAUNCH = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int)
PREFILL = AttentionWorkload(
    head_dim=32, query_heads=3, query_length=70, key_length=70, causal="top_left"
)
DECODING = AttentionWorkload(head_dim=32, query_heads=2, query_length=1, key_length=600)


@pytest.mark.parametrize("name", ["row_block", "blocks_and_merge", "running", "split_kv"])
def test_the_closure_begins_with_the_number_of_iterations(name: str) -> None:
    """The launch here runs all tasks in turn, and notes what the one in threads/launch.ll would read."""
    target = detect_target()
    workload, candidate = DECODING, decode_candidate(1)
    if name != "split_kv":
        workload = PREFILL
        candidate = prefill_candidate(name, lanes_of(target), 32, masked=True)
        candidate = candidate.replace(pack_value=1)  # a loop of its own
    found: list[int] = []

    def launch(task: int, closure: int, asked: int) -> int:
        assert asked == 0
        found.append(ctypes.c_int32.from_address(closure).value)
        environment = GroupEnvironment(None, found[-1])
        here = ctypes.addressof(environment)
        codes = [_TASK(task)(n, here, closure) for n in range(found[-1])]
        return max(codes)

    callback = _LAUNCH(launch)
    module: Any = build_module(workload, target, candidate)
    module["bind_launch"](ctypes.cast(callback, ctypes.c_void_p).value)
    compiled = CompiledKernel(module["main"], module["workspace"], module)
    query, key, value = inputs(workload)
    for threads in (1, 3):
        kernel = Kernel(workload, KernelSource(candidate, None, "", ()), compiled, threads)
        found.clear()
        assert_right(kernel(query, key, value), query, key, value, causal=workload.causal)
        assert set(found) == {threads}


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
