"""Workloads: their fields, what they are called, and their forms as a dict and as text."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from tvm_attention.errors import (
    AttentionError,
    InvalidTypeError,
    InvalidValueError,
    UnsupportedError,
)
from tvm_attention.workload import AttentionWorkload
from tvm_attention.workload_text import feature_text

PLAIN = AttentionWorkload(head_dim=64)
FEATURES: list[dict[str, Any]] = [
    {"window": (3, -1)}, {"mask": "bool"}, {"mask": "float16", "mask_per_key": True},
    {"mask": "bool", "mask_dense": True},
    {"softcap": True}, {"alibi": True}, {"sinks": True}, {"ragged": True}, {"paged": True},
    {"kv_dtype": "int8"}, {"output": "attention_and_lse"}, {"output": "weights"},
]  # fmt: skip
EVERYTHING = AttentionWorkload(
    head_dim=64, value_dim=96, dtype="bfloat16", causal="bottom_right", batch=3, query_heads=12,
    kv_heads=4, query_length=5, key_length=70, window=(8, -1), mask="bool", mask_per_key=True,
    mask_dense=True, softcap=True, alibi=True, sinks=True, ragged=True, paged=True, kv_dtype="int8",
    output="attention_and_lse",
)  # fmt: skip


@pytest.mark.parametrize("features", [{}, *FEATURES])
def test_as_a_dict(features: dict[str, Any]) -> None:
    workload = replace(PLAIN, **features)
    values = workload.to_dict()
    assert AttentionWorkload.from_dict(json.loads(json.dumps(values))) == workload
    assert set(features) <= set(values)
    extensions = {name for f in FEATURES for name in f}
    assert set(values) & extensions == set(features)  # records of old are as they were


def test_everything_as_a_dict() -> None:
    values = EVERYTHING.to_dict()
    assert len(values) == len(AttentionWorkload.__slots__)
    assert values["window"] == [8, -1]
    assert AttentionWorkload.from_dict(values) == EVERYTHING


def test_as_text() -> None:
    text = (
        "head_dim=64, value_dim=96,dtype=bfloat16,causal=bottom_right,batch=3,query_heads=12,kv_heads=4,"
        "query_length=5,key_length=70,window=8:-1,mask=bool,mask_per_key=true,mask_dense=true,"
        "softcap=true,alibi=True,sinks=true,ragged=true,paged=true,kv_dtype=int8,output=attention_and_lse"
    )
    assert AttentionWorkload.from_text(text) == EVERYTHING
    none = "head_dim=64,window=none,mask=none,kv_dtype=None,softcap=false,causal=none"
    assert AttentionWorkload.from_text(none) == PLAIN
    for word, causal in (("true", "top_left"), ("false", None), ("top_left", "top_left")):
        found = AttentionWorkload.from_text(f"head_dim=64,causal={word}")
        assert found == AttentionWorkload(head_dim=64, causal=causal)


@pytest.mark.parametrize(
    ("text", "error", "message"),
    [
        ("head_dim", InvalidValueError, "expected name=value, got 'head_dim'"),
        ("head_dim=", InvalidValueError, "expected name=value"),
        ("head_dim=64,head_dim=64", InvalidValueError, "given twice"),
        ("causal=true", InvalidValueError, "needs head_dim"),
        ("head_dim=64,colour=1", InvalidValueError, "unknown workload field colour"),
        ("head_dim=x", InvalidValueError, "head_dim: expected a whole number, got 'x'"),
        ("head_dim=64,window=3", InvalidTypeError, r"window: expected \(left, right\)"),
        ("head_dim=64,window=3:4:5", InvalidTypeError, r"window: expected \(left, right\)"),
        ("head_dim=64,window=a:b", InvalidValueError, "window: expected a whole number, got 'a:b'"),
        ("head_dim=64,window=-2:0", InvalidValueError, "window: expected -1 to"),
        ("head_dim=64,mask=true", InvalidValueError, "mask: expected None or 'bool'.*got 'true'"),
        ("head_dim=64,mask=float64", InvalidValueError, "mask: expected .*got 'float64'"),
        ("head_dim=64,mask_per_key=true", InvalidValueError, "expected False without a mask"),
        ("head_dim=64,softcap=30", InvalidTypeError, "softcap: expected a bool, got 30"),
        ("head_dim=64,causal=left", InvalidValueError, "causal: expected .*got 'left'"),
        ("head_dim=64,output=lse", InvalidValueError, "output: expected 'attention' or"),
        ("head_dim=64,kv_dtype=int4", InvalidValueError, "kv_dtype: expected .*'int8'.*'int4'"),
        ("head_dim=64,dtype=float64", UnsupportedError, "dtype: expected one of .*'float64'"),
        ("head_dim=64,query_heads=8,kv_heads=3", InvalidValueError, "multiple of kv_heads"),
    ],
)
def test_text_that_is_refused(text: str, error: type[AttentionError], message: str) -> None:
    with pytest.raises(error, match=message):
        AttentionWorkload.from_text(text)


@pytest.mark.parametrize(
    ("field", "value"),
    [("softcap", 1), ("sinks", None), ("ragged", "yes"), ("window", (1.0, 2)), ("window", 4)],
)
def test_types_that_are_refused(field: str, value: Any) -> None:
    with pytest.raises(InvalidTypeError, match=field):
        AttentionWorkload(head_dim=64, **{field: value})


def test_kernels_differ_by_features_and_not_by_numbers() -> None:
    kinds = [PLAIN, *(replace(PLAIN, **f) for f in FEATURES), replace(PLAIN, causal=True)]
    assert len({w.kernel_features for w in kinds}) == len(kinds)
    for same in ((5, 7), (0, -1)):
        wide = replace(PLAIN, window=same)
        assert wide.kernel_features == replace(PLAIN, window=(1, 1)).kernel_features
    both = [replace(PLAIN, causal=c).kernel_features for c in ("top_left", "bottom_right")]
    assert both[0] == both[1]


def test_features_in_words() -> None:
    assert feature_text(PLAIN) == "no options"
    assert feature_text(EVERYTHING) == (
        "causal, window, mask bool, mask per key, mask dense, softcap, alibi, sinks, ragged, paged, "
        "keys and values int8, output attention_and_lse"
    )


def test_which_queries_may_miss_keys() -> None:
    masks = {"causal", "window", "mask"}
    for features in [*FEATURES, {"causal": "top_left"}]:
        assert replace(PLAIN, **features).masks is bool(masks & set(features)), features
    assert replace(PLAIN, ragged=True, output="weights").masks
