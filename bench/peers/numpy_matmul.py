"""NumPy: matrix product, softmax, matrix product in float32, buffers made beforehand."""

from __future__ import annotations

from typing import Any

import numpy as np

from bench.peers.contract import Prepared, require, require_room_for_scores
from bench.problem import Numbers, Problem
from tvm_attention.baselines import numpy_attention
from tvm_attention.interleaved import Contender


def prepare(problem: Problem, threads: int) -> Prepared:
    """Sets the threads of NumPy's BLAS for the rest of the process."""
    import threadpoolctl

    w = problem.workload
    require(w.dtype == "float32", f"numpy: measured in float32 only, not {w.dtype}")
    hidden = w.mask or w.window or w.ragged
    require(not hidden, "numpy: measured without masks and windows only")
    require_room_for_scores(problem, "numpy")
    threadpoolctl.threadpool_limits(threads, user_api="blas")
    call = numpy_attention(problem.workload, problem.query, problem.key, problem.value)

    def results() -> tuple[Numbers, ...]:
        call().fill(np.nan)
        return (call(),)

    return Prepared(Contender("numpy", call, pool="blas"), results)


def blas() -> list[dict[str, Any]]:
    """The BLAS libraries of the process, with the kernels they chose for this processor."""
    import threadpoolctl

    known = ("internal_api", "version", "architecture", "num_threads")
    found = threadpoolctl.threadpool_info()
    return [{k: x.get(k) for k in known} for x in found if x["user_api"] == "blas"]
