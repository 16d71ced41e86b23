"""The ONNX backend node tests of the operator Attention, driving ``tvm_attention.attention``."""

from __future__ import annotations

from collections import Counter
from typing import Any

import ml_dtypes
import numpy as np
import pytest

pytest.importorskip("onnx")
torch = pytest.importorskip("torch")

from onnx_attention import SERVED_MODE, Array, Case, cases, run  # noqa: E402

from tvm_attention import attention  # noqa: E402

CASES = cases()
# As the package's own runner: two units in the last place.
BFLOAT16_RTOL = 2.0**-6


def to_torch(array: Array) -> Any:
    if array.dtype == ml_dtypes.bfloat16:
        return torch.from_numpy(array.view(np.int16).copy()).view(torch.bfloat16)
    return torch.from_numpy(array.copy())


def to_numpy(result: Any) -> Array:
    if isinstance(result, np.ndarray):
        return result
    if result.dtype == torch.bfloat16:
        return result.contiguous().view(torch.int16).numpy().view(ml_dtypes.bfloat16)
    return result.numpy()


def assert_outputs(case: Case, found: dict[str, Any]) -> None:
    for name, expected in case.outputs.items():
        if name == "qk_matmul_output" and case.mode != SERVED_MODE:
            assert name not in found
            continue
        got = to_numpy(found[name])
        assert got.dtype == expected.dtype, name
        rtol = case.rtol
        if expected.dtype == ml_dtypes.bfloat16:
            rtol = BFLOAT16_RTOL
            got, expected = got.astype(np.float32), expected.astype(np.float32)
        np.testing.assert_allclose(got, expected, rtol=rtol, atol=case.atol, err_msg=name)


@pytest.mark.parametrize("convert", [lambda x: x, to_torch], ids=["numpy", "torch"])
@pytest.mark.parametrize("case", CASES, ids=[c.name.removeprefix("test_attention_") for c in CASES])
def test_case(case: Case, convert: Any) -> None:
    assert_outputs(case, run(case, attention, convert))


def test_every_case_is_there_and_which_outputs_are_refused() -> None:
    """The counts of onnx 1.23: a new release of it must not lose cases, or add some unnoticed."""
    assert len(CASES) == 93
    modes = Counter(c.mode for c in CASES if "qk_matmul_output" in c.outputs)
    assert modes == {0: 3, 1: 2, 2: 7, SERVED_MODE: 6}
    features = Counter(
        name for c in CASES for name in (*c.inputs, *c.attributes) if name not in "QKV"
    )
    assert features == {
        "attn_mask": 52, "past_key": 21, "past_value": 21, "nonpad_kv_seqlen": 13,
        "is_causal": 32, "scale": 6, "softcap": 11, "left_window_size": 11, "right_window_size": 2,
        "q_num_heads": 25, "kv_num_heads": 25, "qk_matmul_output_mode": 15, "softmax_precision": 2,
    }  # fmt: skip
