"""The ONNX backend: whole models, what runs where, what is refused; Attention against the reference."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

onnx = pytest.importorskip("onnx")

from onnx import TensorProto, helper, numpy_helper  # noqa: E402

from tvm_attention import onnx as backend  # noqa: E402
from tvm_attention import reference  # noqa: E402
from tvm_attention.errors import InvalidValueError, UnsupportedError  # noqa: E402
from tvm_attention.onnx import operator, others  # noqa: E402
from tvm_attention.onnx.operator import AttentionNode  # noqa: E402
from tvm_attention.onnx.partition import Part, partition  # noqa: E402

FLOAT, INT64, BFLOAT16 = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BFLOAT16
WIDTH, HEADS, ROWS = 16, 2, 5
RNG = np.random.default_rng(3)


def _value(name: str, dtype: int = FLOAT, shape: Any = (1, ROWS, WIDTH)) -> Any:
    return helper.make_tensor_value_info(name, dtype, shape)


def _model(nodes: list[Any], weights: dict[str, Any], *, opset: int = 25, **more: Any) -> Any:
    graph = helper.make_graph(
        nodes,
        "model",
        more.get("inputs", [_value("x")]),
        more.get("outputs", [_value("y")]),
        initializer=[numpy_helper.from_array(a, n) for n, a in weights.items()],
    )
    model = helper.make_model(
        graph,
        opset_imports=[helper.make_opsetid("", opset), *more.get("opsets", [])],
        functions=more.get("functions", []),
    )
    model.ir_version = 11
    return model


def _layer(number: int, taken: str, made: str) -> tuple[list[Any], dict[str, Any]]:
    """Projections, attention, projection and the residual of a layer."""
    names = {n: f"{n}{number}" for n in ("wq", "wk", "wv", "wo", "q", "k", "v", "a", "o")}
    weights = {
        names[n]: RNG.standard_normal((WIDTH, WIDTH)).astype(np.float32) / 4
        for n in ("wq", "wk", "wv", "wo")
    }
    nodes = [
        *(helper.make_node("MatMul", [taken, names[f"w{n}"]], [names[n]]) for n in ("q", "k", "v")),
        _attention([names["q"], names["k"], names["v"]], [names["a"]], is_causal=1),
        helper.make_node("MatMul", [names["a"], names["wo"]], [names["o"]]),
        helper.make_node("Add", [names["o"], taken], [made]),
    ]
    return nodes, weights


def _attention(taken: list[str], made: list[str], **attributes: Any) -> Any:
    attributes = {"q_num_heads": HEADS, "kv_num_heads": HEADS, **attributes}
    return helper.make_node("Attention", taken, made, **attributes)


def _two_layers(**more: Any) -> Any:
    first, second = _layer(0, "x", "h"), _layer(1, "h", "y")
    return _model(first[0] + second[0], first[1] | second[1], **more)


def _reference(model: Any, feeds: dict[str, Any]) -> list[Any]:
    from onnx.reference import ReferenceEvaluator

    return list(ReferenceEvaluator(model).run(None, feeds))


def _x(*shape: int) -> Any:
    return RNG.standard_normal(shape or (1, ROWS, WIDTH)).astype(np.float32)


@pytest.fixture(params=["onnxruntime", "reference"])
def other_nodes(request: pytest.FixtureRequest) -> str:
    if request.param == "onnxruntime":
        pytest.importorskip("onnxruntime", reason="the extra onnx brings it")
    return str(request.param)


@pytest.mark.parametrize("opset", [23, 24, 25])
def test_a_model_of_two_layers(opset: int, other_nodes: Any) -> None:
    model, x = _two_layers(opset=opset), _x()
    ready = backend.prepare(model, other_nodes=other_nodes)
    for inputs in ([x], {"x": x}, x):
        outputs = ready.run(inputs)
        np.testing.assert_allclose(outputs.y, _reference(model, {"x": x})[0], rtol=1e-4, atol=1e-5)


def test_attention_is_ours_and_the_rest_is_in_few_parts() -> None:
    steps = partition(_two_layers())
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
    backend.prepare(_two_layers(), other_nodes="reference")
    assert not made
    backend.prepare(_two_layers())
    assert len(made) == 3
    monkeypatch.setattr(others, "find_spec", lambda name: None)
    backend.prepare(_two_layers())
    assert len(made) == 3
    with pytest.raises(InvalidValueError, match="installed, got onnxruntime"):
        backend.prepare(_two_layers(), other_nodes="onnxruntime")
    with pytest.raises(InvalidValueError, match="got 'tensorrt'"):
        backend.prepare(_two_layers(), other_nodes="tensorrt")  # type: ignore[arg-type]


def test_what_onnxruntime_does_not_take_is_run_by_the_reference() -> None:
    """Its arrays know no bfloat16, and its CPU has no Sin of bfloat16 anyway."""
    ml_dtypes = pytest.importorskip("ml_dtypes")
    shape = (1, HEADS, ROWS, 8)
    nodes = [
        helper.make_node("Add", ["x", "x"], ["q"]),
        helper.make_node("Attention", ["q", "x", "x"], ["a"]),
        helper.make_node("Neg", ["a"], ["y"]),
    ]
    ends = {"inputs": [_value("x", BFLOAT16, shape)], "outputs": [_value("y", BFLOAT16, shape)]}
    model, x = _model(nodes, {}, **ends), _x(*shape).astype(ml_dtypes.bfloat16)
    (y,) = backend.run_model(model, [x])
    assert y.dtype == x.dtype
    expected = _reference(model, {"x": x})[0].astype(np.float32)
    np.testing.assert_allclose(y.astype(np.float32), expected, rtol=2**-6, atol=2**-6)
    sine = [helper.make_node("Cast", ["x"], ["b"], to=BFLOAT16), helper.make_node("Sin", ["b"], ["s"]),
            helper.make_node("Cast", ["s"], ["y"], to=FLOAT)]  # fmt: skip
    (y,) = backend.run_model(_model(sine, {}), [x := _x()])
    np.testing.assert_allclose(y, np.sin(x), atol=0.02)


def test_weights_values_and_outputs_in_every_place(other_nodes: Any) -> None:
    """Keys that are weights, a mask from a Constant, an output made early, one that is an input, and an If
    whose bodies take a value from before the attention."""
    key, mask = _x(1, 7, WIDTH), RNG.random((ROWS, 7)) < 0.7
    bodies = {
        branch: helper.make_graph(
            [helper.make_node(op, ["early", "a"], [f"{branch}_out"])],
            branch, [], [_value(f"{branch}_out")],
        )
        for branch, op in (("then_branch", "Add"), ("else_branch", "Sub"))
    }  # fmt: skip
    nodes = [
        helper.make_node("Constant", [], ["m"], value=numpy_helper.from_array(mask)),
        helper.make_node("Relu", ["x"], ["early"]),
        _attention(["x", "key", "key", "m"], ["a", "", "", "p"], qk_matmul_output_mode=3),
        helper.make_node("If", ["flag"], ["y"], **bodies),
    ]
    model = _model(
        nodes,
        {"key": key, "unused": _x()},
        inputs=[_value("x"), _value("flag", TensorProto.BOOL, ())],
        outputs=[_value("y"), _value("early"), _value("x"), _value("key", FLOAT, key.shape),
                 _value("p", FLOAT, (1, HEADS, ROWS, 7))],
    )  # fmt: skip
    ready = backend.prepare(model, other_nodes=other_nodes)
    for flag in (True, False):
        feeds = {"x": _x(), "flag": np.array(flag)}
        found = ready.run(feeds)
        for got, expected in zip(found, _reference(model, feeds), strict=True):
            np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-5)


def test_a_cache_goes_round(other_nodes: Any) -> None:
    """present_key and present_value of a step are past_key and past_value of the next."""
    shape = (1, HEADS, None, 8)
    nodes = [
        helper.make_node("Mul", ["x", "two"], ["q"]),
        _attention(["q", "x", "x", "", "pk", "pv"], ["y", "nk", "nv"], is_causal=1),
    ]
    one = (1, "rows", WIDTH)
    model = _model(
        nodes,
        {"two": np.array(2, np.float32)},
        inputs=[_value("x", FLOAT, one), _value("pk", FLOAT, shape), _value("pv", FLOAT, shape)],
        outputs=[_value("y", FLOAT, one), _value("nk", FLOAT, shape), _value("nv", FLOAT, shape)],
    )
    ready, x = backend.prepare(model, other_nodes=other_nodes), _x(1, 6, WIDTH)
    nothing = np.zeros((1, HEADS, 0, 8), np.float32)
    whole = ready.run([x, nothing, nothing])
    key = value = nothing
    for start, end in ((0, 3), (3, 4), (4, 6)):
        y, key, value = ready.run([x[:, start:end], key, value])
        np.testing.assert_allclose(y, whole.y[:, start:end], rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(key, whole.nk)
    np.testing.assert_array_equal(value, whole.nv)


def test_functions_of_a_model_are_inlined() -> None:
    body = [_attention(["a", "a", "a"], ["b"])]
    function = helper.make_function(
        "own", "Twice", ["a"], ["b"], body, [helper.make_opsetid("", 25)]
    )
    nodes = [helper.make_node("Twice", ["x"], ["y"], domain="own")]
    model = _model(nodes, {}, functions=[function], opsets=[helper.make_opsetid("own", 1)])
    assert [type(step) for step in partition(model)] == [AttentionNode]
    x = _x()
    np.testing.assert_allclose(
        backend.run_model(model, [x])[0], _reference(model, {"x": x})[0], rtol=1e-4, atol=1e-5
    )


def test_a_model_without_attention(other_nodes: Any) -> None:
    model = _model([helper.make_node("Relu", ["x"], ["y"])], {}, opset=18)
    (y,) = backend.run_model(model, [x := _x()], other_nodes=other_nodes)
    np.testing.assert_array_equal(y, np.maximum(x, 0))


def _body_attends() -> Any:
    bodies = {
        branch: helper.make_graph(
            [_attention(["x", "x", "x"], [branch])], branch, [], [_value(branch)]
        )
        for branch in ("then_branch", "else_branch")
    }
    return _model(
        [helper.make_node("If", ["flag"], ["y"], **bodies)],
        {},
        inputs=[_value("x"), _value("flag", TensorProto.BOOL, ())],
    )


def _unknown_type() -> Any:
    nodes = [
        helper.make_node("Mystery", ["x"], ["q"], domain="own"),
        _attention(["q", "q", "q"], ["y"]),
    ]
    return _model(nodes, {}, opsets=[helper.make_opsetid("own", 1)])


def _with(taken: tuple[str, ...] = ("x", "x", "x"), made: Any = ("y",), **attributes: Any) -> Any:
    more = {"inputs": [_value(name, FLOAT, None) for name in dict.fromkeys(filter(None, taken))]}
    if "nonpad" in taken:
        more["inputs"][-1] = _value("nonpad", INT64, (1,))
    return _model([_attention(list(taken), list(made), **attributes)], {}, **more)


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
        partition(_two_layers())


def test_devices() -> None:
    assert backend.supports_device("CPU")
    assert not backend.supports_device("CUDA:0")
    assert not backend.is_compatible(_two_layers(), "CUDA")
    with pytest.raises(UnsupportedError, match="expected 'CPU', got 'CUDA'"):
        backend.prepare(_two_layers(), "CUDA")


@pytest.mark.parametrize("inputs", [[], [1, 2], {"z": 1}, {"x": 1, "z": 2}])
def test_wrong_inputs(inputs: Any) -> None:
    with pytest.raises(InvalidValueError, match=r"inputs: expected .*x"):
        backend.prepare(_two_layers()).run(inputs)


@pytest.mark.parametrize("dtype", [np.float64, np.int32])
def test_a_dtype_that_is_not_served(dtype: Any) -> None:
    node = helper.make_node("Attention", ["x", "x", "x"], ["y"])
    with pytest.raises(Exception, match=r"float32|float64|int32"):
        backend.run_node(node, [np.ones((1, 1, 2, 4), dtype)] * 3)


def test_run_node() -> None:
    x, mask = _x(1, HEADS, ROWS, 8), RNG.random((ROWS, ROWS)) < 0.8
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
        given[name] = _x(*shape)
    mask = draw(st.sampled_from([None, "bool", "float"]))
    if mask is not None:
        keep = RNG.random((rows, past + new)) < 0.8
        given["m"] = (
            keep if mask == "bool" else np.where(keep, _x(*keep.shape), np.float32(-np.inf))
        )
    if kind == "past":
        given |= {"pk": _x(2, 2, past, 8), "pv": _x(2, 2, past, 8)}
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
    expected = _reference(
        _model(
            [node],
            {},
            inputs=[
                _value(n, helper.np_dtype_to_tensor_dtype(inputs[n].dtype), inputs[n].shape)
                for n in present
            ],
            outputs=[_value(n, FLOAT, None) for n in made if n],
        ),
        inputs,
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(operator, "attention", _slow_attention)
        found = backend.run_node(node, [inputs[name] for name in present])
    for name, got, right in zip([n for n in made if n], found, expected, strict=True):
        np.testing.assert_allclose(got, right, rtol=1e-4, atol=1e-5, err_msg=name)
