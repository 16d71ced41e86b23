"""OpenVINO's ScaledDotProductAttention on its CPU plugin, in float32."""

from __future__ import annotations

import numpy as np

from bench.peers.contract import Prepared
from bench.problem import Float32, Problem, aligned
from tvm_attention.errors import UnsupportedError
from tvm_attention.interleaved import Contender


def prepare(problem: Problem, threads: int) -> Prepared:
    """The operator wants as many key as query heads; where several query heads share keys and no
    row hides any, they are passed as rows of one head, which needs no copy."""
    import openvino
    from openvino import opset13

    w = problem.workload
    if w.causal is not None and w.group > 1:
        raise UnsupportedError("openvino: the operator has no grouped heads; causal rows differ")
    if w.causal is not None and w.query_length != w.key_length:
        raise UnsupportedError("openvino: causal is measured for equal lengths only")
    shared_rows = w.group * w.query_length
    query = problem.query.reshape(w.batch, -1, shared_rows, w.head_dim)
    arrays = (query, problem.key, problem.value)
    places = [opset13.parameter(list(x.shape), np.float32) for x in arrays]
    attention = opset13.scaled_dot_product_attention(*places, causal=w.causal is not None)
    options = {
        "INFERENCE_NUM_THREADS": threads,
        "INFERENCE_PRECISION_HINT": "f32",  # the default is bfloat16 where the processor has it
        "NUM_STREAMS": 1,
        "ENABLE_CPU_PINNING": False,  # would change the affinity all contenders run under
    }
    model = openvino.Model([attention], places)
    request = openvino.Core().compile_model(model, "CPU", options).create_infer_request()
    for index, array in enumerate(arrays):
        request.set_input_tensor(index, openvino.Tensor(array, shared_memory=True))
    result = aligned((*query.shape[:3], problem.value.shape[3]))
    request.set_output_tensor(0, openvino.Tensor(result, shared_memory=True))

    def results() -> tuple[Float32, ...]:
        result.fill(np.nan)
        request.infer()
        return (result.reshape(problem.shape),)

    return Prepared(Contender("openvino", request.infer, pool="openvino"), results)
