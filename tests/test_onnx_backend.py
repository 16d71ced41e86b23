"""The ONNX backend: whole models, and what runs where."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")

from onnx import TensorProto, helper, numpy_helper  # noqa: E402
from onnx_models import (  # noqa: E402
    BFLOAT16,
    FLOAT,
    HEADS,
    RNG,
    ROWS,
    WIDTH,
    attention_node,
    model_of,
    random_x,
    reference_outputs,
    two_layers,
    value,
)

from tvm_attention import onnx as backend  # noqa: E402
from tvm_attention.errors import InvalidValueError  # noqa: E402
from tvm_attention.onnx import others  # noqa: E402
from tvm_attention.onnx.operator import AttentionNode  # noqa: E402
from tvm_attention.onnx.partition import Part, partition  # noqa: E402


@pytest.fixture(params=["onnxruntime", "reference"])
def other_nodes(request: pytest.FixtureRequest) -> str:
    if request.param == "onnxruntime":
        pytest.importorskip("onnxruntime", reason="the extra onnx brings it")
    return str(request.param)


@pytest.mark.parametrize("opset", [23, 24, 25])
def test_a_model_of_two_layers(opset: int, other_nodes: Any) -> None:
    model, x = two_layers(opset=opset), random_x()
    ready = backend.prepare(model, other_nodes=other_nodes)
    for inputs in ([x], {"x": x}, x):
        outputs = ready.run(inputs)
        np.testing.assert_allclose(
            outputs.y, reference_outputs(model, {"x": x})[0], rtol=1e-4, atol=1e-5
        )


def test_attention_is_ours_and_the_rest_is_in_few_parts() -> None:
    steps = partition(two_layers())
    assert [type(step) for step in steps] == [Part, AttentionNode, Part, AttentionNode, Part]
    for part in (steps[0], steps[2], steps[4]):
        assert not any(node.op_type == "Attention" for node in part.model.graph.node)
    assert [node.op_type for node in steps[2].model.graph.node].count("MatMul") == 4


def test_other_nodes_run_where_they_should(monkeypatch: pytest.MonkeyPatch) -> None:
    runtime = pytest.importorskip("onnxruntime")
    made: list[Any] = []
    real = runtime.InferenceSession

    def session(*arguments: Any, **more: Any) -> Any:
        made.append(real(*arguments, **more))
        return made[-1]

    monkeypatch.setattr(runtime, "InferenceSession", session)
    backend.prepare(two_layers(), other_nodes="reference")
    assert not made
    backend.prepare(two_layers())
    assert len(made) == 3
    monkeypatch.setattr(others, "find_spec", lambda name: None)
    backend.prepare(two_layers())
    assert len(made) == 3
    with pytest.raises(InvalidValueError, match="installed, got onnxruntime"):
        backend.prepare(two_layers(), other_nodes="onnxruntime")
    with pytest.raises(InvalidValueError, match="got 'tensorrt'"):
        backend.prepare(two_layers(), other_nodes="tensorrt")  # type: ignore[arg-type]


def test_what_onnxruntime_does_not_take_is_run_by_the_reference() -> None:
    """Its arrays know no bfloat16, and its CPU has no Sin of bfloat16 anyway."""
    ml_dtypes = pytest.importorskip("ml_dtypes")
    shape = (1, HEADS, ROWS, 8)
    nodes = [
        helper.make_node("Add", ["x", "x"], ["q"]),
        helper.make_node("Attention", ["q", "x", "x"], ["a"]),
        helper.make_node("Neg", ["a"], ["y"]),
    ]
    ends = {"inputs": [value("x", BFLOAT16, shape)], "outputs": [value("y", BFLOAT16, shape)]}
    model, x = model_of(nodes, {}, **ends), random_x(*shape).astype(ml_dtypes.bfloat16)
    (y,) = backend.run_model(model, [x])
    assert y.dtype == x.dtype
    expected = reference_outputs(model, {"x": x})[0].astype(np.float32)
    np.testing.assert_allclose(y.astype(np.float32), expected, rtol=2**-6, atol=2**-6)
    sine = [helper.make_node("Cast", ["x"], ["b"], to=BFLOAT16), helper.make_node("Sin", ["b"], ["s"]),
            helper.make_node("Cast", ["s"], ["y"], to=FLOAT)]  # fmt: skip
    (y,) = backend.run_model(model_of(sine, {}), [x := random_x()])
    np.testing.assert_allclose(y, np.sin(x), atol=0.02)


def test_weights_values_and_outputs_in_every_place(other_nodes: Any) -> None:
    """Keys that are weights, a mask from a Constant, an output made early, one that is an input, and an If
    whose bodies take a value from before the attention."""
    key, mask = random_x(1, 7, WIDTH), RNG.random((ROWS, 7)) < 0.7
    bodies = {
        branch: helper.make_graph(
            [helper.make_node(op, ["early", "a"], [f"{branch}_out"])],
            branch, [], [value(f"{branch}_out")],
        )
        for branch, op in (("then_branch", "Add"), ("else_branch", "Sub"))
    }  # fmt: skip
    nodes = [
        helper.make_node("Constant", [], ["m"], value=numpy_helper.from_array(mask)),
        helper.make_node("Relu", ["x"], ["early"]),
        attention_node(["x", "key", "key", "m"], ["a", "", "", "p"], qk_matmul_output_mode=3),
        helper.make_node("If", ["flag"], ["y"], **bodies),
    ]
    model = model_of(
        nodes,
        {"key": key, "unused": random_x()},
        inputs=[value("x"), value("flag", TensorProto.BOOL, ())],
        outputs=[value("y"), value("early"), value("x"), value("key", FLOAT, key.shape),
                 value("p", FLOAT, (1, HEADS, ROWS, 7))],
    )  # fmt: skip
    ready = backend.prepare(model, other_nodes=other_nodes)
    for flag in (True, False):
        feeds = {"x": random_x(), "flag": np.array(flag)}
        found = ready.run(feeds)
        for got, expected in zip(found, reference_outputs(model, feeds), strict=True):
            np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-5)


def test_a_cache_goes_round(other_nodes: Any) -> None:
    """present_key and present_value of a step are past_key and past_value of the next."""
    shape = (1, HEADS, None, 8)
    nodes = [
        helper.make_node("Mul", ["x", "two"], ["q"]),
        attention_node(["q", "x", "x", "", "pk", "pv"], ["y", "nk", "nv"], is_causal=1),
    ]
    one = (1, "rows", WIDTH)
    model = model_of(
        nodes,
        {"two": np.array(2, np.float32)},
        inputs=[value("x", FLOAT, one), value("pk", FLOAT, shape), value("pv", FLOAT, shape)],
        outputs=[value("y", FLOAT, one), value("nk", FLOAT, shape), value("nv", FLOAT, shape)],
    )
    ready, x = backend.prepare(model, other_nodes=other_nodes), random_x(1, 6, WIDTH)
    nothing = np.zeros((1, HEADS, 0, 8), np.float32)
    whole = ready.run([x, nothing, nothing])
    past_key = past_value = nothing
    for start, end in ((0, 3), (3, 4), (4, 6)):
        y, past_key, past_value = ready.run([x[:, start:end], past_key, past_value])
        np.testing.assert_allclose(y, whole.y[:, start:end], rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(past_key, whole.nk)
    np.testing.assert_array_equal(past_value, whole.nv)


def test_functions_of_a_model_are_inlined() -> None:
    body = [attention_node(["a", "a", "a"], ["b"])]
    function = helper.make_function(
        "own", "Twice", ["a"], ["b"], body, [helper.make_opsetid("", 25)]
    )
    nodes = [helper.make_node("Twice", ["x"], ["y"], domain="own")]
    model = model_of(nodes, {}, functions=[function], opsets=[helper.make_opsetid("own", 1)])
    assert [type(step) for step in partition(model)] == [AttentionNode]
    x = random_x()
    np.testing.assert_allclose(
        backend.run_model(model, [x])[0],
        reference_outputs(model, {"x": x})[0],
        rtol=1e-4,
        atol=1e-5,
    )


def test_a_model_without_attention(other_nodes: Any) -> None:
    model = model_of([helper.make_node("Relu", ["x"], ["y"])], {}, opset=18)
    (y,) = backend.run_model(model, [x := random_x()], other_nodes=other_nodes)
    np.testing.assert_array_equal(y, np.maximum(x, 0))


def test_run_node() -> None:
    x, mask = random_x(1, HEADS, ROWS, 8), RNG.random((ROWS, ROWS)) < 0.8
    node = helper.make_node(
        "Attention", ["q", "k", "v", "m"], ["y", "", "", "p"], qk_matmul_output_mode=3
    )
    y, p = backend.run_node(node, [x, x, x, mask])
    np.testing.assert_allclose(p @ x, y, rtol=1e-4, atol=1e-5)
    assert not p[..., ~mask].any()
    same = helper.make_node("Attention", ["q", "k", "v"], ["y"])
    (whole,) = backend.run_node(same, [x, x, x, None], opset_version=23)
    assert abs(whole - y).max() > 1e-3
    (relu,) = backend.run_node(helper.make_node("Relu", ["a"], ["b"]), x)
    np.testing.assert_array_equal(relu, np.maximum(x, 0))


def test_nothing_of_onnx_is_imported_before_it_is_asked_for() -> None:
    import subprocess

    code = "import sys, tvm_attention as ta; ta.attention; print('onnx' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
