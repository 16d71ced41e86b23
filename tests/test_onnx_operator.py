"""ONNX Attention in every combination of inputs and attributes, against onnx's reference."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

onnx = pytest.importorskip("onnx")

from onnx import helper  # noqa: E402
from onnx_models import FLOAT, RNG, model_of, random_x, reference_outputs, value  # noqa: E402

from tvm_attention import onnx as backend  # noqa: E402
from tvm_attention import reference  # noqa: E402
from tvm_attention.onnx import operator  # noqa: E402


@st.composite
def _calls(draw: st.DrawFn) -> tuple[dict[str, Any], dict[str, Any]]:
    """Attributes and inputs of the operator in every combination that it allows."""
    rows, new = draw(st.integers(1, 6)), draw(st.integers(1, 6))
    kind = draw(st.sampled_from(["plain", "past", "lengths"]))
    past = draw(st.integers(0, 5)) if kind == "past" else 0
    flat, group = draw(st.booleans()), draw(st.sampled_from([1, 2]))
    attributes: dict[str, Any] = {"is_causal": draw(st.sampled_from([0, 1]))}
    for side in ("left", "right"):
        attributes[f"{side}_window_size"] = draw(st.integers(-1, 4))
    if draw(st.booleans()):
        attributes["softcap"] = 3.0
    heads = {"q": 2 * group, "k": 2, "v": 2}
    if flat:
        attributes |= {"q_num_heads": heads["q"], "kv_num_heads": 2}
    given: dict[str, Any] = {}
    for name, count in (("q", rows), ("k", new), ("v", new)):
        shape = (2, count, heads[name] * 8) if flat else (2, heads[name], count, 8)
        given[name] = random_x(*shape)
    mask = draw(st.sampled_from([None, "bool", "float"]))
    if mask is not None:
        keep = RNG.random((rows, past + new)) < 0.8
        given["m"] = (
            keep if mask == "bool" else np.where(keep, random_x(*keep.shape), np.float32(-np.inf))
        )
    if kind == "past":
        given |= {"pk": random_x(2, 2, past, 8), "pv": random_x(2, 2, past, 8)}
    if kind == "lengths":
        given["n"] = np.array(draw(st.lists(st.integers(0, new), min_size=2, max_size=2)))
    return attributes, given


def _slow_attention(query: Any, key: Any, value: Any, *, layout: str, **options: Any) -> Any:
    """``attention`` by its definition in float64: no kernel to be built for each combination."""
    rows_first = layout == "bshd"
    arrays = [x.swapaxes(1, 2) if rows_first else x for x in (query, key, value)]
    out, weights = reference.attention(*arrays, **options)
    out = out.swapaxes(1, 2) if rows_first else out
    return out.astype(query.dtype), weights.astype(query.dtype)


@settings(max_examples=400)
@given(_calls())
def test_attention_is_that_of_the_reference(call: tuple[dict[str, Any], dict[str, Any]]) -> None:
    attributes, inputs = call
    names = [name if name in inputs else "" for name in ("q", "k", "v", "m", "pk", "pv", "n")]
    made = ["y", "nk", "nv", "p"] if "pk" in inputs else ["y", "", "", "p"]
    node = helper.make_node("Attention", names, made, qk_matmul_output_mode=3, **attributes)
    present = [name for name in names if name]
    expected = reference_outputs(
        model_of(
            [node],
            {},
            inputs=[
                value(n, helper.np_dtype_to_tensor_dtype(inputs[n].dtype), inputs[n].shape)
                for n in present
            ],
            outputs=[value(n, FLOAT, None) for n in made if n],
        ),
        inputs,
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(operator, "attention", _slow_attention)
        found = backend.run_node(node, [inputs[name] for name in present])
    for name, got, right in zip([n for n in made if n], found, expected, strict=True):
        np.testing.assert_allclose(got, right, rtol=1e-4, atol=1e-5, err_msg=name)
