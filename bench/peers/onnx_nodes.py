"""ONNX nodes of com.microsoft's attention operators, with their inputs and outputs in memory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from bench.problem import Numbers, Problem, additive, aligned, rows_of_heads


@dataclass(frozen=True, slots=True)
class Operator:
    """A node, and its inputs and outputs by name; "result" is (B, L, H*Ev)."""

    node: Any
    inputs: Mapping[str, Numbers]
    outputs: Mapping[str, Numbers]


def multi_head(problem: Problem) -> Operator:
    """MultiHeadAttention takes and gives (B, L, H*E); masks are its attention bias."""
    w = problem.workload
    batch, heads, length, value_dim = problem.shape
    inputs = {
        "query": rows_of_heads(problem.query),
        "key": rows_of_heads(problem.key),
        "value": rows_of_heads(problem.value),
    }
    outputs = {"result": aligned((batch, length, heads * value_dim), problem.query.dtype)}
    names = list(inputs)
    if (mask := problem.mask(natively={"causal"})) is not None:
        rows = np.broadcast_to(mask, (*mask.shape[:2], *problem.scores[2:]))  # of keys' masks, too
        inputs["bias"] = additive(rows)
        names += ["", "", "bias"]  # behind the bias of projections and the mask of keys
    node = _node(
        "MultiHeadAttention",
        names,
        list(outputs),
        num_heads=heads,
        unidirectional=int(w.causal is not None),
    )
    return Operator(node, inputs, outputs)


def grouped_query(problem: Problem) -> Operator:
    """GroupQueryAttention's cache is (B, Hkv, S, E). A decode step's holds all keys but the last;
    cache in and out are the same memory, as the operator asks for: nothing is copied but the row of
    the new key and value."""
    w = problem.workload
    batch, heads, length, value_dim = problem.shape
    dtype = problem.query.dtype
    lengths = problem.options.get("kv_lengths")
    ends = np.full(batch, w.key_length) if lengths is None else np.asarray(lengths)
    inputs: dict[str, Numbers] = {"query": rows_of_heads(problem.query)}
    key, value = problem.key, problem.value
    caches = {n: aligned(x.shape, dtype) for n, x in (("key", key), ("value", value))}
    names = ["query", "key", "value"]
    if length == 1:
        new = [np.stack([x[b, :, [e - 1]] for b, e in enumerate(ends)]) for x in (key, value)]
        new = [x.swapaxes(1, 2) for x in new]  # NumPy puts the axis of a list first
        inputs |= {"key": rows_of_heads(new[0]), "value": rows_of_heads(new[1])}
        for name, x in (("key", key), ("value", value)):
            caches[name][...] = x
            inputs[f"past_{name}"] = caches[name]
        names += ["past_key", "past_value"]
    else:
        inputs |= {"key": rows_of_heads(key), "value": rows_of_heads(value)}
        names += ["", ""]
    inputs["seqlens_k"] = (ends - 1).astype(np.int32)
    inputs["total_sequence_length"] = np.array([w.key_length], np.int32)
    outputs = {
        "result": aligned((batch, length, heads * value_dim), dtype),
        "present_key": caches["key"],
        "present_value": caches["value"],
    }
    node = _node(
        "GroupQueryAttention",
        [*names, "seqlens_k", "total_sequence_length"],
        list(outputs),
        num_heads=heads,
        kv_num_heads=w.kv_heads,
        **({} if w.window is None else {"local_window_size": w.window[0] + 1}),
    )
    return Operator(node, inputs, outputs)


def _node(name: str, inputs: list[str], outputs: list[str], **attributes: Any) -> Any:
    from onnx import helper

    return helper.make_node(name, inputs, outputs, domain="com.microsoft", **attributes)
