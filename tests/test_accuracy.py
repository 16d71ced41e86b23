import math
from dataclasses import replace

import numpy as np
import pytest

from tvm_attention import reference
from tvm_attention.accuracy import ROUNDING, compare, compare_lse
from tvm_attention.errors import InvalidValueError
from tvm_attention.random_calls import random_inputs, random_options
from tvm_attention.workload import AttentionWorkload

SMALL = AttentionWorkload(
    head_dim=8, batch=2, query_heads=4, kv_heads=2, query_length=5, key_length=7
)
LARGE = AttentionWorkload(head_dim=4, query_heads=16, query_length=600, key_length=300)


def _solved(workload):
    q, k, v = random_inputs(workload, seed=1)
    result = reference.attention(q, k, v, causal=workload.causal)
    return result.astype(np.float32), q, k, v


@pytest.mark.parametrize("causal", [None, "top_left", "bottom_right"])
@pytest.mark.parametrize("shape", [SMALL, LARGE], ids=["whole", "sampled"])
def test_a_right_result_holds(shape, causal):
    workload = AttentionWorkload.from_dict({**shape.to_dict(), "causal": causal})
    result, *inputs = _solved(workload)
    accuracy = compare(result, *inputs, workload)
    assert accuracy.holds
    assert accuracy.roundings <= 1
    assert accuracy.allowed == pytest.approx(4 * ROUNDING * np.ptp(inputs[2]))


def test_a_small_problem_is_compared_whole():
    result, *inputs = _solved(SMALL)
    assert compare(result, *inputs, SMALL).rows == 2 * 4 * 5
    result[1, 3, 4, 7] += 1e-3
    assert not compare(result, *inputs, SMALL).holds


def test_a_large_problem_is_sampled_with_the_first_and_last_row_of_a_head():
    result, *inputs = _solved(LARGE)
    accuracy = compare(result, *inputs, LARGE)
    assert 8 * 16 <= accuracy.rows <= 8 * 18
    for row in (0, 599):
        wrong = result.copy()
        wrong[:, :, row] += 1e-3
        assert compare(wrong, *inputs, LARGE).max_error == pytest.approx(1e-3, rel=1e-2)


def test_a_nan_never_holds():
    result, *inputs = _solved(SMALL)
    result[0, 0, 0, 0] = math.nan
    accuracy = compare(result, *inputs, SMALL)
    assert math.isnan(accuracy.max_error)
    assert not accuracy.holds


def test_another_shape_is_refused():
    result, *inputs = _solved(SMALL)
    with pytest.raises(InvalidValueError, match=r"\(2, 4, 5, 8\), got \(2, 4, 5, 7\)"):
        compare(result[..., :7], *inputs, SMALL)


OPTIONS = {
    "mask": "float32", "causal": "bottom_right", "window": (4, -1), "softcap": True, "alibi": True,
    "sinks": True, "ragged": True,
}  # fmt: skip


@pytest.mark.parametrize("shape", [SMALL, LARGE], ids=["whole", "sampled"])
@pytest.mark.parametrize("per_key", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_results_with_options(shape, per_key, dtype):
    workload = replace(shape, **OPTIONS, mask_per_key=per_key, dtype=dtype)
    inputs = random_inputs(workload, seed=1)
    options = random_options(workload, seed=1) | {"softcap": 0.3}
    result = reference.attention(*inputs, **options).astype(inputs[0].dtype)
    accuracy = compare(result, *inputs, workload, options=options)
    assert accuracy.holds
    assert accuracy.roundings <= 1
    for name in ("mask", "alibi_slopes", "sinks", "kv_lengths", "softcap", "window", "causal"):
        fewer = {**options, name: None}
        assert not compare(result, *inputs, workload, options=fewer).holds, name


@pytest.mark.parametrize("shape", [SMALL, LARGE], ids=["whole", "sampled"])
def test_weights(shape):
    workload = replace(shape, output="weights", causal="top_left")
    inputs = random_inputs(workload, seed=1)
    result = reference.attended(*inputs, causal="top_left").weights.astype(np.float32)
    accuracy = compare(result, *inputs, workload)
    assert accuracy.holds
    assert accuracy.allowed == 4 * ROUNDING
    result[:, :, -1, 2] += 1e-6
    assert compare(result, *inputs, workload).max_error == pytest.approx(1e-6, rel=0.1)
    with pytest.raises(InvalidValueError, match="result: expected shape"):
        compare(result[..., :-1], *inputs, workload)


@pytest.mark.parametrize("shape", [SMALL, LARGE], ids=["whole", "sampled"])
def test_log_sum_exp(shape):
    """Rows that see nothing are minus infinity, and only these."""
    workload = replace(shape, output="attention_and_lse", causal="bottom_right", query_length=601)
    inputs = random_inputs(workload, seed=1)
    lse = reference.attended(*inputs, causal="bottom_right").lse.astype(np.float32)
    assert np.isneginf(lse[:, :, 0]).all()
    accuracy = compare_lse(lse, *inputs, workload)
    assert accuracy.holds
    assert accuracy.allowed >= 4 * ROUNDING
    for wrong in (lse[0, 0, -1] + 1e-4, -math.inf, math.nan):
        spoilt = lse.copy()
        spoilt[:, :, -1] = wrong
        assert not compare_lse(spoilt, *inputs, workload).holds
    spoilt = lse.copy()
    spoilt[:, :, 0] = 0.0
    assert not compare_lse(spoilt, *inputs, workload).holds
