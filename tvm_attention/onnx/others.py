"""The parts of a model between its Attention nodes, run by onnxruntime or by onnx.reference."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from typing import Any, Literal

import onnx

from tvm_attention import environment
from tvm_attention.errors import InvalidValueError
from tvm_attention.onnx.places import Array

OtherNodes = Literal["onnxruntime", "reference"]
Run = Callable[[dict[str, Array]], list[Array]]

# What onnxruntime takes as NumPy arrays; the others (bfloat16, 8 and 4 bits) have no dtype there.
_PLAIN = {
    getattr(onnx.TensorProto, name)
    for name in (
        "FLOAT", "FLOAT16", "DOUBLE", "BOOL", "STRING", "INT8", "INT16", "INT32", "INT64", "UINT8",
        "UINT16", "UINT32", "UINT64",
    )
}  # fmt: skip


def chosen(name: str | None) -> OtherNodes:
    """Who runs the other nodes: as named, else onnxruntime if it is installed.

    Raises InvalidValueError for another name, or one that is not installed.
    """
    installed = find_spec("onnxruntime") is not None
    if name is None:
        return "onnxruntime" if installed else "reference"
    if name == "onnxruntime" and not installed:
        raise InvalidValueError(
            "other_nodes: expected a runtime that is installed, got onnxruntime"
        )
    if name not in ("onnxruntime", "reference"):
        raise InvalidValueError(
            f"other_nodes: expected 'onnxruntime', 'reference' or None, got {name!r}"
        )
    return "onnxruntime" if name == "onnxruntime" else "reference"


def prepared(model: Any, by: OtherNodes) -> Run:
    """A function from a model's inputs by name to its outputs in order."""
    if by == "onnxruntime" and _plain(model):
        session = _session(model)
        if session is not None:
            return lambda feeds: list(session.run(None, feeds))
    from onnx.reference import ReferenceEvaluator

    evaluator = ReferenceEvaluator(model)
    return lambda feeds: list(evaluator.run(None, feeds))


def _plain(model: Any) -> bool:
    ends = (*model.graph.input, *model.graph.output)
    return all(
        v.type.tensor_type.elem_type in _PLAIN for v in ends if v.type.HasField("tensor_type")
    )


def _session(model: Any) -> Any:
    """A session; None where onnxruntime has no kernel for an operator, dtype or opset of the model."""
    import onnxruntime
    from onnxruntime.capi import onnxruntime_pybind11_state as errors

    options = onnxruntime.SessionOptions()
    # Its threads would spin on the cores that attention needs next.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    options.intra_op_num_threads = environment.num_threads() or 0  # 0: as onnxruntime thinks best
    options.log_severity_level = 3
    try:
        return onnxruntime.InferenceSession(
            model.SerializeToString(), options, providers=["CPUExecutionProvider"]
        )
    except (errors.NotImplemented, errors.Fail, errors.InvalidGraph):
        return None
