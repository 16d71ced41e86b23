"""Results on a GPU against float64."""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np

from bench.gpu.bundle import Bundle, kernel
from bench.gpu.cases import Case
from bench.gpu.journal import Values
from bench.gpu.place import Place
from tvm_attention import accuracy
from tvm_attention.arrays import torch_cuda_kind
from tvm_attention.call import Call
from tvm_attention.cuda.kernel import DeviceKernel
from tvm_attention.errors import TuningError
from tvm_attention.options import opened_options
from tvm_attention.random_calls import RandomCall, random_call
from tvm_attention.workload import AttentionWorkload

# Beyond the accuracy that is promised: random inputs come near that bound, faults go far past it.
ERROR_LIMIT = 4.0


class OnPlace:
    """A random call of a workload with its tensors on the GPU."""

    def __init__(self, place: Place, workload: AttentionWorkload, seed: int = 0) -> None:
        self._place, self.workload = place, workload
        self.problem: RandomCall = random_call(workload, seed)
        self.arrays = tuple(place.tensor(x) for x in self.problem.arrays)
        self._kind: Any = torch_cuda_kind(self.arrays[0])
        self.call = self._call()
        out, lse = self.problem.outputs(workload.output)
        out.fill(np.nan)
        self.out = place.tensor(out)
        self.lse = None if lse is None else place.tensor(np.full_like(lse, np.nan))

    def run(self, made: DeviceKernel) -> None:
        """Start the kernel on the current stream."""
        made.compute(self._kind, self.call, self.arrays, self.out, self.lse)

    def poison(self) -> None:
        """Let the outputs hold no numbers."""
        self.out.fill_(float("nan"))
        if self.lse is not None:
            self.lse.fill_(float("nan"))

    @cached_property
    def expectation(self) -> accuracy.Expectation:
        """What float64 has for it: made once, as the GPU waits meanwhile."""
        options = self.problem.options
        return accuracy.Expectation.of(*self.problem.inputs, self.workload, options=options)

    def error(self) -> float:
        """The largest error of what is in the outputs, as a share of the bound that is promised."""
        given: dict[str, Any] = {"options": self.problem.options}
        inputs, w = self.problem.inputs, self.workload
        found = [self.expectation.accuracy(self._place.array(self.out))]
        if self.lse is not None:
            found.append(accuracy.compare_lse(self._place.array(self.lse), *inputs, w, **given))
        shares = [a.max_error / a.allowed for a in found]
        return max(shares, key=lambda x: (x != x, x))

    def _call(self) -> Call:
        """The call with its mask, if it has one, on the GPU."""
        call, options = self.problem.call, dict(self.problem.options)
        if options.get("mask") is None:
            return call
        options["mask"] = self._place.tensor(np.asarray(options["mask"]))
        opened = opened_options(self._kind, call.sizes, query_dtype=self.workload.dtype, **options)
        return replace(call, options=opened)


def check(place: Place, bundle: Bundle, case: Case) -> Values:
    """The worst error of a case's kernel. Raises TuningError for a wrong result."""
    made = kernel(bundle, place, case.workloads[0], case.candidate)
    worst = 0.0
    for n, workload in enumerate(case.workloads):
        on = OnPlace(place, workload, seed=n)
        on.run(made)
        worst = _worse(worst, on, f"{workload.query_length}x{workload.key_length}")
    return {"error": worst, "candidate": str(case.candidate)}


def check_unaligned(place: Place, bundle: Bundle, case: Case) -> Values:
    """Tensors that do not suit vectors: one element further on."""
    made = kernel(bundle, place, case.workloads[0], case.candidate)
    workload = case.workloads[-1]
    on = OnPlace(place, workload)
    moved = []
    for array in on.problem.arrays:
        wide = np.zeros((*array.shape[:3], array.shape[3] + 1), array.dtype)
        wide[..., 1:] = array
        moved.append(place.tensor(wide)[..., 1:])
    on.arrays = tuple(moved)
    on.run(made)
    return {"error": _worse(0.0, on, "unaligned")}


def check_streams(place: Place, bundle: Bundle, case: Case) -> Values:
    """Calls on two streams, behind what fills their inputs there: nothing else orders them."""
    made = kernel(bundle, place, case.workloads[0], case.candidate)
    calls = [OnPlace(place, case.workloads[-1], seed) for seed in range(4)]
    filled = [[x.clone() for x in on.arrays] for on in calls]
    for on in calls:
        for x in on.arrays:
            x.fill_(float("nan"))
    place.synchronize()
    for on, numbers in zip(calls, filled, strict=True):
        with place.on_a_stream():
            for x, y in zip(on.arrays, numbers, strict=True):
                for _ in range(50):  # so long that a kernel on another stream would overtake them
                    x.copy_(y)
            on.run(made)
    return {"error": max(_worse(0.0, on, "streams") for on in calls)}


def _worse(worst: float, on: OnPlace, what: str) -> float:
    error = on.error()
    if not error <= ERROR_LIMIT:
        raise TuningError(f"wrong result, {what}: {error:.3g} times the error that is promised")
    return max(worst, error)
