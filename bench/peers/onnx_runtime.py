"""onnxruntime's fused attention operators on its CPU provider, input and output memory preset."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from bench.peers.contract import ROWS_LAYOUT, Prepared, hides_keys, require, require_room_for_scores
from bench.peers.onnx_nodes import Operator, grouped_query, multi_head
from bench.problem import Numbers, Problem, heads_of_rows
from tvm_attention.errors import UnsupportedError
from tvm_attention.interleaved import Contender

Arrays = Mapping[str, Numbers]


def prepare(problem: Problem, threads: int) -> Prepared:
    """MultiHeadAttention; for a decode step with grouped heads, GroupQueryAttention."""
    w = problem.workload
    if w.group > 1:
        return prepare_grouped(problem, threads)
    require(w.dtype == "float32", f"onnxruntime: MultiHeadAttention has no {w.dtype} on CPUs")
    unequal = w.causal is not None and w.query_length != w.key_length
    require(not unequal, "onnxruntime: causal is measured for equal lengths only")
    if hides_keys(w):  # it has a fused kernel without
        require_room_for_scores(problem, "onnxruntime, where a mask or causal is,")
    return _prepared("onnxruntime", problem, multi_head(problem), threads)


def prepare_separately(problem: Problem, threads: int) -> Prepared:
    """GroupQueryAttention, where :func:`prepare` takes MultiHeadAttention."""
    require(problem.workload.group == 1, "onnxruntime runs GroupQueryAttention here")
    return prepare_grouped(problem, threads)


def prepare_grouped(problem: Problem, threads: int) -> Prepared:
    """GroupQueryAttention, which is causal and has no mask: a decode step, or equal lengths."""
    w = problem.workload
    require(w.dtype != "bfloat16", "onnxruntime: GroupQueryAttention has no bfloat16 on CPUs")
    require(w.head_dim == w.value_dim, "onnxruntime: GroupQueryAttention has one head dimension")
    require(w.mask is None, "onnxruntime: GroupQueryAttention is measured without masks only")
    causal = w.causal is not None and w.query_length == w.key_length and not w.ragged
    require(causal or w.query_length == 1, "onnxruntime: GroupQueryAttention is causal")
    require_room_for_scores(problem, "onnxruntime's GroupQueryAttention")
    return _prepared("onnxruntime-gqa", problem, grouped_query(problem), threads)


def _prepared(name: str, problem: Problem, operator: Operator, threads: int) -> Prepared:
    heads = problem.workload.query_heads
    try:
        session = _session(operator, threads)
    except Exception as error:  # onnxruntime's own classes, one a kind of failure
        raise UnsupportedError(f"onnxruntime: {str(error).splitlines()[0]}") from error
    binding = session.io_binding()
    places = ((binding.bind_input, operator.inputs), (binding.bind_output, operator.outputs))
    for bind, arrays in places:
        for given, x in arrays.items():
            bind(given, "cpu", 0, x.dtype.type, list(x.shape), x.ctypes.data)
    result = operator.outputs["result"]

    def call() -> None:
        session.run_with_iobinding(binding)

    def results() -> tuple[Numbers, ...]:
        result.fill(np.nan)
        call()
        return (heads_of_rows(result, heads),)

    contender = Contender(name, call, pool="onnxruntime")
    return Prepared(contender, results, layout=ROWS_LAYOUT, memory=operator)


def _session(operator: Operator, threads: int) -> Any:
    import onnxruntime
    from onnx import helper

    def infos(arrays: Arrays) -> list[Any]:
        types = {n: helper.np_dtype_to_tensor_dtype(x.dtype) for n, x in arrays.items()}
        return [helper.make_tensor_value_info(n, types[n], x.shape) for n, x in arrays.items()]

    graph = helper.make_graph(
        [operator.node], "attention", infos(operator.inputs), infos(operator.outputs)
    )
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    options.log_severity_level = 4  # a kernel that is not there is reported by its exception
    providers = ["CPUExecutionProvider"]
    return onnxruntime.InferenceSession(model.SerializeToString(), options, providers=providers)
