"""Small ONNX models with Attention nodes, and what they give by onnx's own reference."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")

from onnx import TensorProto, helper, numpy_helper  # noqa: E402

FLOAT, INT64, BFLOAT16 = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BFLOAT16
WIDTH, HEADS, ROWS = 16, 2, 5
RNG = np.random.default_rng(3)


def value(name: str, dtype: int = FLOAT, shape: Any = (1, ROWS, WIDTH)) -> Any:
    return helper.make_tensor_value_info(name, dtype, shape)


def model_of(nodes: list[Any], weights: dict[str, Any], *, opset: int = 25, **more: Any) -> Any:
    graph = helper.make_graph(
        nodes,
        "model",
        more.get("inputs", [value("x")]),
        more.get("outputs", [value("y")]),
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
        attention_node([names["q"], names["k"], names["v"]], [names["a"]], is_causal=1),
        helper.make_node("MatMul", [names["a"], names["wo"]], [names["o"]]),
        helper.make_node("Add", [names["o"], taken], [made]),
    ]
    return nodes, weights


def attention_node(taken: list[str], made: list[str], **attributes: Any) -> Any:
    attributes = {"q_num_heads": HEADS, "kv_num_heads": HEADS, **attributes}
    return helper.make_node("Attention", taken, made, **attributes)


def two_layers(**more: Any) -> Any:
    first, second = _layer(0, "x", "h"), _layer(1, "h", "y")
    return model_of(first[0] + second[0], first[1] | second[1], **more)


def reference_outputs(model: Any, feeds: dict[str, Any]) -> list[Any]:
    from onnx.reference import ReferenceEvaluator

    return list(ReferenceEvaluator(model).run(None, feeds))


def random_x(*shape: int) -> Any:
    return RNG.standard_normal(shape or (1, ROWS, WIDTH)).astype(np.float32)
