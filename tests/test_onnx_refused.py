"""Models, devices and inputs that the ONNX backend refuses."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")

from onnx import TensorProto, helper  # noqa: E402
from onnx_models import FLOAT, INT64, attention_node, model_of, two_layers, value  # noqa: E402

from tvm_attention import onnx as backend  # noqa: E402
from tvm_attention.errors import InvalidValueError, UnsupportedError  # noqa: E402
from tvm_attention.onnx.partition import partition  # noqa: E402


def _body_attends() -> Any:
    bodies = {
        branch: helper.make_graph(
            [attention_node(["x", "x", "x"], [branch])], branch, [], [value(branch)]
        )
        for branch in ("then_branch", "else_branch")
    }
    return model_of(
        [helper.make_node("If", ["flag"], ["y"], **bodies)],
        {},
        inputs=[value("x"), value("flag", TensorProto.BOOL, ())],
    )


def _unknown_type() -> Any:
    nodes = [
        helper.make_node("Mystery", ["x"], ["q"], domain="own"),
        attention_node(["q", "q", "q"], ["y"]),
    ]
    return model_of(nodes, {}, opsets=[helper.make_opsetid("own", 1)])


def _with(taken: tuple[str, ...] = ("x", "x", "x"), made: Any = ("y",), **attributes: Any) -> Any:
    more = {"inputs": [value(name, FLOAT, None) for name in dict.fromkeys(filter(None, taken))]}
    if "nonpad" in taken:
        more["inputs"][-1] = value("nonpad", INT64, (1,))
    return model_of([attention_node(list(taken), list(made), **attributes)], {}, **more)


@pytest.mark.parametrize(
    ("model", "error", "said"),
    [
        (_body_attends(), UnsupportedError, "If 'y': expected no Attention in its body"),
        (_unknown_type(), UnsupportedError, "value 'q': expected a type"),
        (_with(made=("y", "", "", "s")), UnsupportedError, "Attention 'y': .*got mode 0"),
        (_with(left_window_size=-2), InvalidValueError, "left_window_size"),
        (_with(("x", "x", "x", "", "k")), InvalidValueError, "together"),
        (_with(("x", "x", "x", "", "k", "k", "nonpad")), InvalidValueError, "got both"),
    ],
)
def test_what_is_not_served(model: Any, error: type[Exception], said: str) -> None:
    with pytest.raises(error, match=said):
        partition(model)
    assert not backend.is_compatible(model)


def test_a_newer_form_of_the_operator_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    class Newer:
        since_version = 27

    monkeypatch.setattr(onnx.defs, "get_schema", lambda *_: Newer)
    with pytest.raises(UnsupportedError, match="of opset 23, 24, 25, got that of 27"):
        partition(two_layers())


def test_devices() -> None:
    assert backend.supports_device("CPU")
    assert not backend.supports_device("CUDA:0")
    assert not backend.is_compatible(two_layers(), "CUDA")
    with pytest.raises(UnsupportedError, match="expected 'CPU', got 'CUDA'"):
        backend.prepare(two_layers(), "CUDA")


@pytest.mark.parametrize("inputs", [[], [1, 2], {"z": 1}, {"x": 1, "z": 2}])
def test_wrong_inputs(inputs: Any) -> None:
    with pytest.raises(InvalidValueError, match=r"inputs: expected .*x"):
        backend.prepare(two_layers()).run(inputs)


@pytest.mark.parametrize("dtype", [np.float64, np.int32])
def test_a_dtype_that_is_not_served(dtype: Any) -> None:
    node = helper.make_node("Attention", ["x", "x", "x"], ["y"])
    with pytest.raises(Exception, match=r"float32|float64|int32"):
        backend.run_node(node, [np.ones((1, 1, 2, 4), dtype)] * 3)
