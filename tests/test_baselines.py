import numpy as np
import pytest

from tvm_attention import accuracy
from tvm_attention.baselines import numpy_attention, torch_attention
from tvm_attention.errors import UnsupportedError
from tvm_attention.random_calls import random_inputs
from tvm_attention.workload import AttentionWorkload

WORKLOADS = [
    AttentionWorkload(
        head_dim=8, value_dim=6, causal=causal, batch=2, query_heads=4, kv_heads=kv, **lengths
    )
    for causal in (None, "top_left")
    for kv in (4, 2)
    for lengths in ({"query_length": 5, "key_length": 9}, {"query_length": 1, "key_length": 3})
]


@pytest.mark.parametrize("workload", WORKLOADS, ids=str)
def test_numpy_is_right_and_computes_anew(workload):
    inputs = random_inputs(workload, seed=2)
    call = numpy_attention(workload, *inputs)
    assert accuracy.compare(call(), *inputs, workload).roundings <= 10
    inputs[2][:] += 1
    assert accuracy.compare(call(), *inputs, workload).roundings <= 10


def test_numpy_serves_bottom_right():
    workload = AttentionWorkload(
        head_dim=8, causal="bottom_right", query_heads=2, query_length=3, key_length=8
    )
    inputs = random_inputs(workload, seed=3)
    result = numpy_attention(workload, *inputs)()
    assert accuracy.compare(result, *inputs, workload).roundings <= 10


@pytest.mark.parametrize("workload", WORKLOADS, ids=str)
def test_torch_is_right(workload):
    torch = pytest.importorskip("torch")
    inputs = random_inputs(workload, seed=4)
    result = torch_attention(workload, *map(torch.from_numpy, inputs))().numpy()
    assert accuracy.compare(result, *inputs, workload).roundings <= 20
    assert result.dtype == np.float32


def test_torch_has_no_bottom_right():
    torch = pytest.importorskip("torch")
    workload = AttentionWorkload(
        head_dim=8, causal="bottom_right", query_heads=2, query_length=3, key_length=8
    )
    with pytest.raises(UnsupportedError, match="bottom-right"):
        torch_attention(workload, *(torch.ones(1) for _ in "qkv"))
