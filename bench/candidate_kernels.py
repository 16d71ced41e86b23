"""Kernels of given candidates on one call with random numbers, checked, to be timed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tvm_attention.accuracy import Accuracy, Expectation
from tvm_attention.arrays import NumPyArrays
from tvm_attention.compiler import CompiledKernel, load_kernel
from tvm_attention.kernel import Kernel
from tvm_attention.kernel_source import KernelSource
from tvm_attention.random_calls import RandomCall, random_call
from tvm_attention.schedules import Candidate
from tvm_attention.target import HardwareTarget
from tvm_attention.workload import AttentionWorkload


@dataclass(frozen=True, slots=True)
class CandidateCall:
    """``run`` computes into ``out``; ``accuracy`` is of its first result."""

    candidate: Candidate
    run: Callable[[], None]
    out: Any
    accuracy: Accuracy


class CandidateCalls:
    """Calls of one workload by kernels of several candidates, all on the same arrays but their results."""

    def __init__(self, workload: AttentionWorkload, threads: int, seed: int = 0) -> None:
        self._workload, self._threads = workload, threads
        self._call: RandomCall = random_call(workload, seed)
        self._expectation = Expectation.of(*self._call.inputs, workload, options=self._call.options)

    def of(self, target: HardwareTarget, candidate: Candidate) -> CandidateCall:
        """Builds the kernel, or takes it from the cache. Raises KernelBuildError."""
        run, out = self.of_kernel(load_kernel(self._workload, target, candidate), candidate)
        out.fill(np.nan)
        run()
        return CandidateCall(candidate, run, out, self._expectation.accuracy(out))

    def of_kernel(
        self, compiled: CompiledKernel, candidate: Candidate
    ) -> tuple[Callable[[], None], NDArray[Any]]:
        """A call of a kernel in memory, and what it writes into."""
        source = KernelSource(candidate, None, "benchmark", ())
        kernel = Kernel(self._workload, source, compiled, self._threads)
        kind, call = NumPyArrays(), self._call
        out, lse = call.outputs(self._workload.output)
        arrays = (*call.arrays, out)
        prepared = kernel.prepare(kind, call.call, tuple(kind.strides(x) for x in arrays), lse)
        addresses = [kind.address(x) for x in arrays]

        def run(_kept: object = (arrays, lse, call)) -> None:  # addresses keep no memory alive
            prepared.run(*addresses)

        return run, out
