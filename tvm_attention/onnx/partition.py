"""A model cut at its Attention nodes: they, and models of the nodes between them, in turn."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import onnx
from onnx import inliner

from tvm_attention.errors import UnsupportedError
from tvm_attention.onnx.operator import OPSETS, AttentionNode

DOMAINS = ("", "ai.onnx")


@dataclass(frozen=True, slots=True)
class Part:
    """Nodes that are run together, as a model; ``inputs`` and ``outputs`` are names of its graph."""

    model: Any
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


Step = Part | AttentionNode


def partition(model: Any) -> tuple[Step, ...]:
    """The steps of a model in the order in which they can run; as few parts as there can be.

    Raises UnsupportedError or InvalidValueError for an Attention node that is not served, and
    UnsupportedError for a value between two parts whose type onnx does not know.
    """
    if model.functions:
        model = inliner.inline_local_functions(model)
    nodes = list(model.graph.node)
    if not any(map(is_attention, nodes)) and not any(map(_attends_inside, nodes)):
        return (_whole(model),)
    _check_opset(model)
    for node in nodes:
        if _attends_inside(node):
            raise UnsupportedError(
                f"{node.op_type} {node.name or node.output[0]!r}: expected no Attention in its body: nodes "
                f"there run inside the other runtime"
            )
    cut = _Cut(model, nodes)
    steps: list[Step] = []
    for others, attentions in _levels(nodes):
        if others:
            steps.append(cut.part(others))
        steps += [AttentionNode.of(nodes[place]) for place in attentions]
    return tuple(steps)


def is_attention(node: Any) -> bool:
    """Whether a node is ONNX's own operator, and no other of that name."""
    return node.op_type == "Attention" and node.domain in DOMAINS


def _whole(model: Any) -> Part:
    weights = {tensor.name for tensor in model.graph.initializer}
    inputs = tuple(v.name for v in model.graph.input if v.name not in weights)
    return Part(model, inputs, tuple(v.name for v in model.graph.output))


def _check_opset(model: Any) -> None:
    version = next(o.version for o in model.opset_import if o.domain in DOMAINS)
    since = onnx.defs.get_schema("Attention", version).since_version
    if since not in OPSETS:
        raise UnsupportedError(
            f"Attention: expected its form of opset {', '.join(map(str, OPSETS))}, got that of {since}"
        )


def _levels(nodes: Sequence[Any]) -> Iterator[tuple[list[int], list[int]]]:
    """The places of (other nodes, Attention nodes) by how many Attention nodes lie before them."""
    made: dict[str, int] = {}
    levels: dict[int, tuple[list[int], list[int]]] = {}
    for place, node in enumerate(nodes):  # ONNX lists them so that they can run
        level = max((made.get(name, 0) for name in used(node)), default=0)
        others, attentions = levels.setdefault(level, ([], []))
        (attentions if is_attention(node) else others).append(place)
        made |= dict.fromkeys(node.output, level + is_attention(node))
    for level in sorted(levels):
        yield levels[level]


def used(node: Any) -> set[str]:
    """The values that a node takes, those that its bodies take from outside among them."""
    names = {name for name in node.input if name}
    for body in _bodies(node):
        inside = {v.name for v in (*body.input, *body.initializer)}
        inside |= {name for n in body.node for name in n.output}
        taken = {v.name for v in body.output}.union(*map(used, body.node))
        names |= taken - inside
    return names


def _bodies(node: Any) -> Iterator[Any]:
    for attribute in node.attribute:
        if attribute.type == onnx.AttributeProto.GRAPH:
            yield attribute.g
        yield from attribute.graphs


def _attends_inside(node: Any) -> bool:
    return any(is_attention(n) or _attends_inside(n) for body in _bodies(node) for n in body.node)


class _Cut:
    """Makes parts of one model."""

    def __init__(self, model: Any, nodes: Sequence[Any]) -> None:
        self._model = model
        self._nodes = nodes
        self._used = [used(node) for node in nodes]
        self._weights = {tensor.name: tensor for tensor in model.graph.initializer}
        self._sparse = {tensor.values.name: tensor for tensor in model.graph.sparse_initializer}
        self._types = _types(model)
        self._ends = {v.name for v in model.graph.output}

    def part(self, places: Sequence[int]) -> Part:
        graph = self._model.graph
        nodes = [self._nodes[place] for place in places]
        made = {name for node in nodes for name in node.output if name}
        taken = set().union(*(self._used[place] for place in places)) - made
        known = self._weights.keys() | self._sparse.keys()
        elsewhere = set(range(len(self._nodes))) - set(places)
        wanted = self._ends.union(*(self._used[place] for place in elsewhere))
        inputs, outputs = sorted(taken - known), sorted(made & wanted)
        part = onnx.helper.make_graph(
            nodes,
            graph.name or "part",
            self._typed(inputs),
            self._typed(outputs),
            initializer=[self._weights[n] for n in sorted(taken & self._weights.keys())],
            sparse_initializer=[self._sparse[n] for n in sorted(taken & self._sparse.keys())],
        )
        model = onnx.helper.make_model(
            part, opset_imports=self._model.opset_import, ir_version=self._model.ir_version
        )
        return Part(model, tuple(inputs), tuple(outputs))

    def _typed(self, names: Iterable[str]) -> list[Any]:
        missing = [name for name in names if name not in self._types]
        if missing:
            raise UnsupportedError(
                f"value {missing[0]!r}: expected a type that onnx can infer or the model's value_info "
                f"tells, got none"
            )
        return [self._types[name] for name in names]


def _types(model: Any) -> dict[str, Any]:
    """The types of the values of a graph. Weights count as inputs, as a model of 2 GB cannot be
    handed to onnx's inference and their content does not matter to it."""
    graph = model.graph
    there = {v.name for v in graph.input}
    weights = [
        onnx.helper.make_tensor_value_info(t.name, t.data_type, t.dims)
        for t in graph.initializer
        if t.name not in there
    ]
    bare = onnx.helper.make_graph(
        graph.node, "types", [*graph.input, *weights], graph.output, value_info=graph.value_info
    )
    known = onnx.shape_inference.infer_shapes(
        onnx.helper.make_model(bare, opset_imports=model.opset_import, ir_version=model.ir_version)
    ).graph
    found = (*known.input, *known.value_info, *known.output)
    return {v.name: v for v in found if v.type.WhichOneof("value")}
