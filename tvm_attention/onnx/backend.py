"""The backend's classes, as ``onnx.backend.base`` has them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx.backend import base

from tvm_attention.errors import InvalidValueError, UnsupportedError
from tvm_attention.onnx.operator import OPSETS, AttentionNode
from tvm_attention.onnx.others import OtherNodes, Run, chosen, prepared
from tvm_attention.onnx.partition import Part, partition
from tvm_attention.onnx.places import Array

__all__ = ["Backend", "BackendRep", "OtherNodes"]

_LARGEST = 2**31 - 1  # bytes of a model that can be checked, as that serialises it


class BackendRep(base.BackendRep):  # type: ignore[misc]
    """A model that is ready to run; made by :meth:`Backend.prepare`."""

    def __init__(self, model: Any, other_nodes: OtherNodes) -> None:
        graph = model.graph
        steps = partition(model)
        self._steps: list[tuple[Part | AttentionNode, Run | None]] = [
            (step, prepared(step.model, other_nodes) if isinstance(step, Part) else None)
            for step in steps
        ]
        self._outputs = [v.name for v in graph.output]
        weights = {tensor.name: tensor for tensor in graph.initializer}
        self._inputs = [v.name for v in graph.input if v.name not in weights]
        needed = {n for s in steps if isinstance(s, AttentionNode) for n in s.inputs.values()}
        held = weights.keys() & (needed | set(self._outputs))
        self._weights = {name: onnx.numpy_helper.to_array(weights[name]) for name in held}
        self._last_uses = _last_uses(steps, self._outputs)

    def run(self, inputs: Any, **kwargs: Any) -> tuple[Array, ...]:
        """The outputs, a named tuple of arrays, for the inputs: arrays in the graph's order, by name in
        a mapping, or one array alone.

        Raises InvalidValueError for too few, too many or unknown inputs, and as
        :func:`tvm_attention.attention` or the other runtime does.
        """
        if kwargs:
            raise InvalidValueError(f"run: expected no further arguments, got {sorted(kwargs)}")
        values = self._weights | self._by_name(inputs)
        for (step, others), done_with in zip(self._steps, self._last_uses, strict=True):
            if isinstance(step, AttentionNode):
                values |= step.run(values)
            else:
                assert others is not None
                found = others({name: values[name] for name in step.inputs})
                values |= zip(step.outputs, found, strict=True)
            for name in done_with:
                values.pop(name, None)
        outputs: tuple[Array, ...] = base.namedtupledict("Outputs", self._outputs)(
            *(values[name] for name in self._outputs)
        )
        return outputs

    def _by_name(self, inputs: Any) -> dict[str, Array]:
        if isinstance(inputs, Mapping):
            given = dict(inputs)
        else:
            arrays = [inputs] if isinstance(inputs, np.ndarray) else list(inputs)
            if len(arrays) != len(self._inputs):
                raise InvalidValueError(
                    f"inputs: expected {len(self._inputs)} ({', '.join(self._inputs)}), got {len(arrays)}"
                )
            given = dict(zip(self._inputs, arrays, strict=True))
        if given.keys() != set(self._inputs):
            raise InvalidValueError(
                f"inputs: expected {', '.join(self._inputs)}, got {', '.join(map(str, given)) or 'none'}"
            )
        return given


def _last_uses(
    steps: Sequence[Part | AttentionNode], outputs: Sequence[str]
) -> list[tuple[str, ...]]:
    """For each step the values that no later one needs, so that they do not fill the memory."""
    later, found = set(outputs), []
    for step in reversed(steps):
        mine = set(step.inputs if isinstance(step, Part) else step.inputs.values())
        found.append(tuple(mine - later))
        later |= mine
    return found[::-1]


class Backend(base.Backend):  # type: ignore[misc]
    """Runs ONNX models on the CPU with Attention by this library; see the package's docstring."""

    @classmethod
    def prepare(
        cls,
        model: Any,
        device: str = "CPU",
        other_nodes: OtherNodes | None = None,
        **kwargs: Any,
    ) -> BackendRep:
        """A model, ready to run. ``other_nodes``: who runs what is no Attention, "onnxruntime" or
        "reference" (onnx.reference); by default onnxruntime where it is installed.

        Raises UnsupportedError for what is not served, InvalidValueError for bad arguments, and
        onnx.checker.ValidationError for a model that is none.
        """
        _check_call("prepare", device, kwargs)
        if model.ByteSize() <= _LARGEST:
            onnx.checker.check_model(model)
        return BackendRep(model, chosen(other_nodes))

    @classmethod
    def is_compatible(cls, model: Any, device: str = "CPU", **kwargs: Any) -> bool:
        """Whether :meth:`prepare` serves a model on a device."""
        if not cls.supports_device(device):
            return False
        try:
            partition(model)
        except (UnsupportedError, InvalidValueError):
            return False
        return True

    @classmethod
    def run_node(
        cls,
        node: Any,
        inputs: Any,
        device: str = "CPU",
        outputs_info: Any = None,
        **kwargs: Any,
    ) -> tuple[Array, ...]:
        """The outputs of a single node for its inputs: arrays in order, those left out as None or not
        given. ``opset_version`` defaults to onnx's newest that this library knows; ``outputs_info`` is
        not needed.
        """
        opset, other_nodes = (
            kwargs.pop("opset_version", OPSETS[-1]),
            kwargs.pop("other_nodes", None),
        )
        _check_call("run_node", device, kwargs)
        super().run_node(node, inputs, device, opset_version=opset)  # which checks the node
        arrays = [inputs] if isinstance(inputs, np.ndarray) else list(inputs)
        named = dict(
            zip((n for n in node.input if n), (a for a in arrays if a is not None), strict=True)
        )
        graph = onnx.helper.make_graph(
            [node],
            "node",
            [
                onnx.helper.make_tensor_value_info(
                    name, onnx.helper.np_dtype_to_tensor_dtype(array.dtype), array.shape
                )
                for name, array in named.items()
            ],
            [onnx.helper.make_empty_tensor_value_info(name) for name in node.output if name],
        )
        model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", opset)])
        model = onnx.shape_inference.infer_shapes(model)
        return BackendRep(model, chosen(other_nodes)).run(named)

    @classmethod
    def supports_device(cls, device: str) -> bool:
        """Whether it is the CPU."""
        return _is_cpu(device)


def _is_cpu(device: str) -> bool:
    return device.split(":")[0] == "CPU"


def _check_call(name: str, device: str, unknown: Mapping[str, Any]) -> None:
    if unknown:
        raise InvalidValueError(f"{name}: expected no further arguments, got {sorted(unknown)}")
    if not _is_cpu(device):
        raise UnsupportedError(f"device: expected 'CPU', got {device!r}")
