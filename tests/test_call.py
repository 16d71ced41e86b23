"""A call: the workload it is one of, and what a kernel is told beyond addresses and extents."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tvm_attention.arguments import extras
from tvm_attention.arrays import NumPyArrays
from tvm_attention.call import Call
from tvm_attention.operands import geometry
from tvm_attention.options import opened_options
from tvm_attention.workload import AttentionWorkload

KIND = NumPyArrays()
SIZES = geometry((2, 8, 5, 64), (2, 2, 7, 64), (2, 2, 7, 32), enable_gqa=True)


def call(dtype: str = "float32", **options: Any) -> Call:
    return Call.of(SIZES, opened_options(KIND, SIZES, query_dtype=dtype, **options), dtype)


def told(made: Call, output: str = "attention", lse: Any = None) -> dict[str, float]:
    """The values of the extra arguments by name."""
    workload = made.workload(output)
    values = made.extra_arguments(workload, KIND, lse)
    return dict(zip([a.name for a in extras(workload)], values, strict=True))


SHAPE = {
    "head_dim": 64, "value_dim": 32, "batch": 2, "query_heads": 8, "kv_heads": 2,
    "query_length": 5, "key_length": 7,
}  # fmt: skip
MASK = np.ones((2, 1, 5, 7), bool)


@pytest.mark.parametrize(
    ("options", "fields"),
    [
        ({}, {}),
        ({"causal": "top_left"}, {"causal": "top_left"}),
        ({"window": (2, None)}, {"window": (2, -1)}),
        ({"window": (-1, -1)}, {}),
        ({"mask": MASK}, {"mask": "bool", "mask_dense": True}),
        ({"mask": np.repeat(MASK, 2, axis=3)[..., ::2]}, {"mask": "bool"}),
        ({"mask": MASK[..., :1]}, {"mask": "bool"}),
        ({"mask": MASK[:, :, :1]}, {"mask": "bool", "mask_per_key": True}),
        ({"mask": MASK.astype(np.float32)}, {"mask": "float32", "mask_dense": True}),
        ({"softcap": 5.0}, {"softcap": True}),
        ({"alibi_slopes": [0.0] * 8}, {"alibi": True}),
        ({"sinks": [0.0] * 8}, {"sinks": True}),
        ({"kv_lengths": [7, 7]}, {"ragged": True}),
    ],
)
def test_workloads(options: dict[str, Any], fields: dict[str, Any]) -> None:
    for dtype in ("float32", "bfloat16"):
        for output in ("attention", "weights"):
            wanted = AttentionWorkload(**SHAPE, **fields, dtype=dtype, output=output)
            assert call(dtype, **options).workload(output) == wanted


def test_nothing_is_told_of_a_plain_call() -> None:
    assert told(call()) == {}
    assert told(call(causal="top_left", scale=3.0)) == {}


def test_offsets() -> None:
    assert call(causal="top_left").causal_offset == 0
    assert call(causal="bottom_right").causal_offset == call().causal_offset == 7 - 5
    # Of each batch element: from its last key, or from its first.
    assert call(kv_lengths=[3, 4]).causal_offset == 1
    assert call(kv_lengths=[3, 4], causal="bottom_right").causal_offset == 1
    assert call(kv_lengths=[3, 4], causal="top_left").causal_offset == 0


def test_windows() -> None:
    far = 1 << 30
    for window, causal, left, right in (
        ((2, 3), None, 2, 3), ((-1, 3), None, far, 3), ((2, -1), None, 2, far),
        ((2, 3), "top_left", 2, 0), ((2, -1), "bottom_right", 2, 0),
    ):  # fmt: skip
        found = told(call(window=window, causal=causal))
        assert found == {"window_left": left, "window_right": right}


def test_masks_by_address_and_strides() -> None:
    found = told(call(mask=MASK[:, :, :, ::-1]))
    assert found.pop("mask") == MASK.ctypes.data + 6
    assert list(found.values()) == [35, 0, 7, -1]
    assert list(found) == [f"mask_{axis}_stride" for axis in ("batch", "head", "row", "column")]


def test_numbers_and_small_arrays() -> None:
    made = call(softcap=5.0, alibi_slopes=np.arange(8.0), sinks=np.arange(8.0), kv_lengths=[3, 0])
    found = told(made)
    assert list(found) == ["softcap_log2", "slopes", "sinks", "ragged"]
    assert math.isclose(found["softcap_log2"], 5.0 * math.log2(math.e))
    assert made.ragged is not None
    assert made.ragged.tolist() == [[0, 5, 0, 3], [0, 5, 0, 0]]
    assert made.ragged.dtype == np.int32
    for name, array in (
        ("slopes", made.options.alibi_slopes), ("sinks", made.options.sinks), ("ragged", made.ragged)
    ):  # fmt: skip
        assert array is not None
        assert found[name] == array.ctypes.data


def test_the_log_sum_exp_by_address_and_strides() -> None:
    whole = np.zeros((2, 8, 5), np.float32)
    for lse, batch, head in ((whole, 40, 5), (whole[:, 0], 40, 0), (whole[0, 0], 0, 0)):
        found = told(call(), "attention_and_lse", lse)
        assert list(found.values()) == [lse.ctypes.data, batch, head]


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"window": (1, 1), "softcap": 2.0, "causal": "top_left"},
        {"mask": MASK},
        {"alibi_slopes": [0.0] * 8},
        {"sinks": [0.0] * 8},
        {"kv_lengths": [7, 7]},
    ],
)
def test_calls_may_be_run_again_unless_caches_are_read(options: dict[str, Any]) -> None:
    made = call(**options)
    assert made.repeatable
    assert not replace(made, scales=(np.ones((2, 2, 7)), np.ones((2, 2, 7)))).repeatable
