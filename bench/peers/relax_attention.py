"""TVM's own attention: relax.op.nn.attention, legalised and compiled by relax's default pipeline for CPUs.

Nothing of it is tuned: the pipeline has no schedules for CPUs, so that it shows what TVM gives without
this library.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from bench.peers.contract import Prepared, require
from bench.problem import Numbers, Problem
from tvm_attention._tvm import import_tvm
from tvm_attention.interleaved import Contender
from tvm_attention.target import detect_target
from tvm_attention.work import flops

MOST_OPERATIONS = 1e9  # it computes about one operation a nanosecond
CAUSAL = {"None": None, "top_left": "TopLeft", "bottom_right": "BottomRight"}


def prepare(problem: Problem, threads: int) -> Prepared:
    """It takes and gives (B, L, H, E), of as many key as query heads."""
    w = problem.workload
    require(w.dtype == "float32", f"relax attention: measured in float32 only, not {w.dtype}")
    require(w.group == 1, "relax attention has no grouped heads")
    require(w.window is None and not w.ragged and w.mask != "bool", "relax attention: no such mask")
    require(
        flops(w) <= MOST_OPERATIONS, "relax attention is untuned: measured up to 1e9 operations"
    )
    inputs = [problem.query, problem.key, problem.value]
    if w.mask is not None:
        rows = np.broadcast_to(problem.options["mask"], problem.scores)
        inputs.append(rows.swapaxes(1, 2))
    compiled, arrays = _compiled(problem, inputs)

    def call() -> Any:
        return compiled["main"](*arrays)

    def results() -> tuple[Numbers, ...]:
        return (call().numpy().swapaxes(1, 2),)

    return Prepared(Contender("relax", call, pool="tvm"), results, layout="B,L,H,E")


def _compiled(problem: Problem, inputs: list[Numbers]) -> tuple[Any, list[Any]]:
    tvm = import_tvm()
    from tvm import relax

    arrays = [np.ascontiguousarray(x.swapaxes(1, 2)) for x in inputs]
    if problem.workload.mask is not None:
        arrays[3] = np.ascontiguousarray(inputs[3].swapaxes(1, 2))  # of scores: (B, H, L, S)
    builder = relax.BlockBuilder()
    places = [
        relax.Var(f"x{n}", relax.TensorType(x.shape, "float32")) for n, x in enumerate(arrays)
    ]
    with builder.function("main", places):
        with builder.dataflow():
            attention = relax.op.nn.attention(
                *places, causal_mask=CAUSAL[str(problem.workload.causal)]
            )
            result = builder.emit_output(builder.emit(attention))
        builder.emit_func_output(result)
    target = tvm.target.Target(detect_target().llvm())
    built = tvm.compile(builder.get(), target=target)
    machine = relax.VirtualMachine(built, tvm.cpu())
    return machine, [tvm.runtime.tensor(x) for x in arrays]
