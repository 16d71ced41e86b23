"""Calls from several threads, in forked children, and on as many threads as are set."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest
from attention_cases import assert_right, query_key_value, unit_normal
from test_threads import run_script

from tvm_attention import load, scaled_dot_product_attention
from tvm_attention.workload import AttentionWorkload

torch = pytest.importorskip("torch")

# Every variant of the default schedules, with scratch memory of their own and without.
SHAPES = [(1, 700, 64), (4, 90, 64), (50, 300, 64), (33, 1100, 40), (7, 5, 3)]


def test_calls_from_several_threads_do_not_disturb_each_other() -> None:
    cases = []
    for rows, keys, dim in SHAPES:
        q, k, v = (unit_normal(1, 3, n, dim, seed=s) for s, n in enumerate((rows, keys, keys)))
        cases.append((q, k, v, scaled_dot_product_attention(q, k, v)))
        assert_right(cases[-1][-1], q, k, v)
    failures: list[BaseException] = []
    start = threading.Barrier(4)

    def run(first: int) -> None:
        try:
            start.wait(300)
            for n in range(60):
                q, k, v, expected = cases[(first + n) % len(cases)]
                if n % 2:
                    tensors = (torch.from_numpy(x) for x in (q, k, v))
                    found = scaled_dot_product_attention(*tensors).numpy()
                else:
                    found = scaled_dot_product_attention(q, k, v)
                # Threads of Python may be served by another number of threads of OpenMP.
                assert_right(found, q, k, v)
                assert np.abs(found - expected).max() < 1e-6
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=run, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


def test_a_kernel_first_asked_for_by_several_threads() -> None:
    """None of them finds a kernel that is half loaded."""
    q, k, v = (unit_normal(1, 2, n, 24, seed=n) for n in (9, 31, 30))
    failures: list[BaseException] = []
    start = threading.Barrier(4)

    def run() -> None:
        try:
            start.wait(300)
            found = scaled_dot_product_attention(q, k[:, :, :30], v, is_causal=True)
            assert_right(found, q, k[:, :, :30], v, causal="top_left")
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


@pytest.mark.parametrize("shape", SHAPES)
def test_the_same_call_twice_is_bit_identical(shape: tuple[int, int, int]) -> None:
    rows, keys, dim = shape
    arrays = [unit_normal(2, 4, n, dim, seed=s) for s, n in enumerate((rows, keys, keys))]
    kernel = load(AttentionWorkload(head_dim=dim, query_length=rows, key_length=keys))
    for call in (scaled_dot_product_attention, kernel):
        first = call(*arrays)
        for _ in range(20):
            np.testing.assert_array_equal(call(*arrays), first)


PREPARE = """
import os, signal, threading
from pathlib import Path
import numpy as np
import tvm_attention
from tvm_attention.reference import attention

rng = np.random.default_rng(0)
q, k, v = (rng.standard_normal((1, 4, n, 16), np.float32) for n in (60, 90, 90))

def check(times=20):
    for _ in range(times):
        for rows in (60, 1):
            out = tvm_attention.scaled_dot_product_attention(q[:, :, :rows], k, v)
            assert np.abs(out - attention(q[:, :, :rows], k, v)).max() < 1e-6

def check_torch(times=20):
    tensors = [torch.from_numpy(x) for x in (q, k, v)]
    for _ in range(times):
        out = tvm_attention.scaled_dot_product_attention(*tensors)
        assert np.abs(out.numpy() - attention(q, k, v)).max() < 1e-6

def tasks():
    return len(os.listdir("/proc/self/task"))
"""

FORK = """
child = os.fork()
if child == 0:
    signal.alarm(200)  # ends a child that hangs
    check()
    grandchild = os.fork()
    if grandchild == 0:
        signal.alarm(100)
        check()
        os._exit(7)
    assert os.waitstatus_to_exitcode(os.waitpid(grandchild, 0)[1]) == 7
    os._exit(5)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 5
check()
"""


@pytest.mark.parametrize("first", ["", "check()"])
def test_a_forked_child_computes(first: str) -> None:
    """Whether its parent has called before, so that the child inherits kernels and calls, or not."""
    run_script(PREPARE, first, FORK, TVM_ATTENTION_NUM_THREADS="2")


def test_a_forked_child_computes_next_to_torch() -> None:
    torch_first = (
        "import torch; torch.set_num_threads(2); torch.ones(500, 500) @ torch.ones(500, 500)"
    )
    run_script(PREPARE, torch_first, "check(); check_torch()", FORK)


def test_the_number_of_threads_of_torch_is_obeyed() -> None:
    script = """
import torch
torch.set_num_threads(1)
check(); check_torch()
alone = tasks()
for _ in range(3):
    check(); check_torch()
assert tasks() == alone, (tasks(), alone)
torch.set_num_threads(3)
check(); check_torch()
assert tasks() == alone + 2, (tasks(), alone)
torch.set_num_threads(2)
check(); check_torch()
assert tasks() <= alone + 2, (tasks(), alone)
"""
    run_script(PREPARE, script)


def test_the_number_of_threads_of_the_environment_is_obeyed() -> None:
    script = """
check(1)
print(tasks())
"""
    one, three = (int(run_script(PREPARE, script, TVM_ATTENTION_NUM_THREADS=n)) for n in ("1", "3"))
    assert three - one == 2


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("rows", [1, 40])
def test_prepared_calls_use_the_threads_that_are_set(threads: int, rows: int) -> None:
    arrays = query_key_value(rows=rows, keys=400)
    before = torch.get_num_threads()
    workload = AttentionWorkload(head_dim=16, value_dim=24, query_length=rows, key_length=400)
    fixed: dict[int, Any] = {n: load(workload, num_threads=n)(*arrays) for n in (1, 2, 3)}
    try:
        torch.set_num_threads(threads)
        found = scaled_dot_product_attention(*arrays)
    finally:
        torch.set_num_threads(before)
    np.testing.assert_array_equal(found, fixed[threads])
