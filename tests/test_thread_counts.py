"""Calls run on as many threads as are set, by torch, the environment or the caller."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from attention_cases import query_key_value
from fresh_process import run_script

from tvm_attention import load, scaled_dot_product_attention
from tvm_attention.workload import AttentionWorkload

torch = pytest.importorskip("torch")

PREPARE = """
import os
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
    workload = AttentionWorkload(head_dim=16, value_dim=24, query_length=rows, key_length=400)
    fixed: dict[int, Any] = {n: load(workload, num_threads=n)(*arrays) for n in (1, 2, 3)}
    torch.set_num_threads(threads)  # put back by conftest
    found = scaled_dot_product_attention(*arrays)
    np.testing.assert_array_equal(found, fixed[threads])
