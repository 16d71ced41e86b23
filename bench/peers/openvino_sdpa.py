"""OpenVINO's ScaledDotProductAttention on its CPU plugin."""

from __future__ import annotations

from typing import Any

import numpy as np

from bench.peers.contract import Prepared, hides_keys, require
from bench.problem import Numbers, Problem, aligned
from tvm_attention.errors import UnsupportedError
from tvm_attention.interleaved import Contender

PRECISIONS = {"float32": "f32", "float16": "f16", "bfloat16": "bf16"}


def prepare(problem: Problem, threads: int) -> Prepared:
    """The operator wants as many key as query heads; where several query heads share keys and no
    row hides any, they are passed as rows of one head, which needs no copy."""
    w = problem.workload
    require(
        not (hides_keys(w) and w.group > 1),
        "openvino: the operator has no grouped heads; rows differ",
    )
    shared_rows = w.group * w.query_length
    query = problem.query.reshape(w.batch, -1, shared_rows, w.head_dim)
    others = w.window or w.mask or w.ragged
    alone = w.causal is not None and w.query_length == w.key_length and not others
    arrays = [query, problem.key, problem.value]
    # A mask of its own beside causal would not be read: all of it is in the mask then.
    if not alone and (mask := problem.mask()) is not None:
        arrays.append(np.ascontiguousarray(mask))
    result = aligned((*query.shape[:3], problem.value.shape[3]), query.dtype)
    try:
        request = _request(arrays, result, w.dtype, alone, threads)
    except RuntimeError as error:
        raise UnsupportedError(f"openvino: {str(error).splitlines()[0]}") from error

    def results() -> tuple[Numbers, ...]:
        result.fill(np.nan)
        request.infer()
        return (result.reshape(problem.shape),)

    return Prepared(Contender("openvino", request.infer, pool="openvino"), results, memory=arrays)


def _request(arrays: list[Numbers], result: Numbers, dtype: str, causal: bool, threads: int) -> Any:
    import openvino
    from openvino import opset13

    places = [opset13.parameter(list(x.shape), _type(x)) for x in arrays]
    attention = opset13.scaled_dot_product_attention(*places, causal=causal)
    options = {
        "INFERENCE_NUM_THREADS": threads,
        # The default for float32 is bfloat16 where the processor has it.
        "INFERENCE_PRECISION_HINT": PRECISIONS[dtype],
        "NUM_STREAMS": 1,
        "ENABLE_CPU_PINNING": False,  # would change the affinity all contenders run under
    }
    model = openvino.Model([attention], places)
    request = openvino.Core().compile_model(model, "CPU", options).create_infer_request()
    for index, array in enumerate(arrays):
        request.set_input_tensor(index, _tensor(array))
    request.set_output_tensor(0, _tensor(result))
    return request


def _type(array: Numbers) -> Any:
    from openvino import Type

    return Type.bf16 if array.dtype.kind == "V" else Type(array.dtype)


def _tensor(array: Numbers) -> Any:
    """On the same memory; of bfloat16, which NumPy has not, the bits are handed over."""
    from openvino import Tensor, Type

    if array.dtype.kind != "V":
        return Tensor(array, shared_memory=True)
    return Tensor(array.view(np.int16), list(array.shape), Type.bf16)
