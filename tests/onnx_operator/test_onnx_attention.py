"""The ONNX backend node tests of the operator Attention, run through ``tvm_attention.onnx``."""

from __future__ import annotations

import importlib
from collections import Counter
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")
ml_dtypes = pytest.importorskip("ml_dtypes")

from tvm_attention import onnx as backend  # noqa: E402
from tvm_attention.errors import UnsupportedError  # noqa: E402
from tvm_attention.onnx.operator import SOFTMAX_ROWS  # noqa: E402

# As the package's own runner: two units in the last place.
BFLOAT16_RTOL = 2.0**-6


@dataclass(frozen=True)
class Case:
    """One node test: a model of one node, its inputs and what it must give."""

    name: str
    model: Any
    inputs: list[Any]
    outputs: dict[str, Any]
    rtol: float
    atol: float

    @property
    def attributes(self) -> dict[str, Any]:
        (node,) = self.model.graph.node
        return {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}

    @property
    def mode(self) -> int:
        return self.attributes.get("qk_matmul_output_mode", 0)

    @property
    def is_refused(self) -> bool:
        return "qk_matmul_output" in self.outputs and self.mode != SOFTMAX_ROWS

    def without_scores(self) -> Any:
        """The model without its output qk_matmul_output."""
        model = onnx.ModelProto()
        model.CopyFrom(self.model)
        (node,) = model.graph.node
        assert node.output[3] == model.graph.output[-1].name == "qk_matmul_output"
        node.output[3] = ""
        del model.graph.output[-1]
        return model


def cases() -> list[Case]:
    """All node tests of the installed package, without the twins that test the operator's expansion
    into others on the same data."""
    np.random.seed(0)  # what the package draws its data from
    importlib.import_module("onnx.backend.test.case.node.attention")
    from onnx.backend.test.case.node import _NodeTestCases

    return [
        _case(t) for t in _NodeTestCases if [n.op_type for n in t.model.graph.node] == ["Attention"]
    ]


def _case(test: Any) -> Case:
    ((inputs, outputs),) = test.data_sets
    names = [v.name for v in test.model.graph.output]
    named = dict(zip(names, outputs, strict=True))
    return Case(test.name, test.model, inputs, named, test.rtol, test.atol)


CASES = cases()


def assert_outputs(case: Case, found: dict[str, Any]) -> None:
    for name, got in found.items():
        expected, rtol = case.outputs[name], case.rtol
        assert got.dtype == expected.dtype, name
        if expected.dtype == ml_dtypes.bfloat16:
            rtol = BFLOAT16_RTOL
            got, expected = got.astype(np.float32), expected.astype(np.float32)
        np.testing.assert_allclose(got, expected, rtol=rtol, atol=case.atol, err_msg=name)


@pytest.mark.parametrize("case", CASES, ids=[c.name.removeprefix("test_attention_") for c in CASES])
def test_case(case: Case) -> None:
    model = case.model
    if case.is_refused:
        with pytest.raises(UnsupportedError, match=f"qk_matmul_output.*got mode {case.mode}"):
            backend.prepare(model)
        assert not backend.is_compatible(model)
        model = case.without_scores()
    assert backend.is_compatible(model)
    found = backend.run_model(model, case.inputs)._asdict()
    assert found.keys() == case.outputs.keys() - (
        {"qk_matmul_output"} if case.is_refused else set()
    )
    assert_outputs(case, found)


def test_every_case_is_there_and_which_outputs_are_refused() -> None:
    """The counts of onnx 1.23: a new release of it must not lose cases, or add some unnoticed."""
    assert len(CASES) == 93
    modes = Counter(c.mode for c in CASES if "qk_matmul_output" in c.outputs)
    assert modes == {0: 3, 1: 2, 2: 7, SOFTMAX_ROWS: 6}
    features = Counter(
        name
        for c in CASES
        for name in (*(v.name for v in c.model.graph.input), *c.attributes)
        if name not in "QKV"
    )
    assert features == {
        "attn_mask": 52, "past_key": 21, "past_value": 21, "nonpad_kv_seqlen": 13,
        "is_causal": 32, "scale": 6, "softcap": 11, "left_window_size": 11, "right_window_size": 2,
        "q_num_heads": 25, "kv_num_heads": 25, "qk_matmul_output_mode": 15, "softmax_precision": 2,
    }  # fmt: skip
