"""onnxruntime's fused attention operators on its CPU provider, input and output memory preset."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bench.peers.contract import ROWS_LAYOUT, Prepared
from bench.problem import Float32, Problem, aligned, heads_of_rows, rows_of_heads
from tvm_attention.errors import UnsupportedError
from tvm_attention.interleaved import Contender

Arrays = Mapping[str, NDArray[Any]]


def prepare(problem: Problem, threads: int) -> Prepared:
    """MultiHeadAttention takes and gives (B, L, H*E); a decode step with grouped heads runs
    GroupQueryAttention, whose cache is (B, Hkv, S, E) and holds all keys but the last."""
    w = problem.workload
    if w.group > 1:
        if w.query_length != 1:
            raise UnsupportedError("onnxruntime: grouped heads are measured for decode only")
        node, inputs, outputs = _grouped(problem)
    else:
        if w.causal is not None and w.query_length != w.key_length:
            raise UnsupportedError("onnxruntime: causal is measured for equal lengths only")
        node, inputs, outputs = _multi_head(problem)
    session = _session(node, inputs, outputs, threads)
    binding = session.io_binding()
    for bind, arrays in ((binding.bind_input, inputs), (binding.bind_output, outputs)):
        for name, x in arrays.items():
            bind(name, "cpu", 0, x.dtype.type, list(x.shape), x.ctypes.data)
    result = outputs["result"]

    def call() -> None:
        session.run_with_iobinding(binding)

    def results() -> tuple[Float32, ...]:
        result.fill(np.nan)
        call()
        return (heads_of_rows(result, w.query_heads),)

    contender = Contender("onnxruntime", call, pool="onnxruntime")
    return Prepared(contender, results, layout=ROWS_LAYOUT, memory=inputs)


def _multi_head(problem: Problem) -> tuple[Any, Arrays, Arrays]:
    from onnx import helper

    w = problem.workload
    batch, heads, length, value_dim = problem.shape
    inputs = {
        "query": rows_of_heads(problem.query),
        "key": rows_of_heads(problem.key),
        "value": rows_of_heads(problem.value),
    }
    outputs = {"result": aligned((batch, length, heads * value_dim))}
    node = helper.make_node(
        "MultiHeadAttention",
        list(inputs),
        list(outputs),
        domain="com.microsoft",
        num_heads=heads,
        unidirectional=int(w.causal is not None),
    )
    return node, inputs, outputs


def _grouped(problem: Problem) -> tuple[Any, Arrays, Arrays]:
    """Cache in and out are the same memory, as the operator asks for: nothing is copied but the row
    of the new key and value."""
    from onnx import helper

    w = problem.workload
    batch, heads, length, value_dim = problem.shape
    past_key, past_value = (aligned(x.shape) for x in (problem.key, problem.value))
    past_key[:, :, :-1], past_value[:, :, :-1] = problem.key[:, :, :-1], problem.value[:, :, :-1]
    inputs: Arrays = {
        "query": rows_of_heads(problem.query),
        "key": rows_of_heads(problem.key[:, :, -1:]),
        "value": rows_of_heads(problem.value[:, :, -1:]),
        "past_key": past_key,
        "past_value": past_value,
        "seqlens_k": np.full(batch, w.key_length - 1, np.int32),
        "total_sequence_length": np.array([w.key_length], np.int32),
    }
    outputs = {
        "result": aligned((batch, length, heads * value_dim)),
        "present_key": past_key,
        "present_value": past_value,
    }
    node = helper.make_node(
        "GroupQueryAttention",
        list(inputs),
        list(outputs),
        domain="com.microsoft",
        num_heads=heads,
        kv_num_heads=w.kv_heads,
    )
    return node, inputs, outputs


def _session(node: Any, inputs: Arrays, outputs: Arrays, threads: int) -> Any:
    import onnxruntime
    from onnx import helper

    def infos(arrays: Arrays) -> list[Any]:
        types = {n: helper.np_dtype_to_tensor_dtype(x.dtype) for n, x in arrays.items()}
        return [helper.make_tensor_value_info(n, types[n], x.shape) for n, x in arrays.items()]

    graph = helper.make_graph([node], "attention", infos(inputs), infos(outputs))
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    providers = ["CPUExecutionProvider"]
    return onnxruntime.InferenceSession(model.SerializeToString(), options, providers=providers)
