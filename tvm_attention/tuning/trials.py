"""What tuning's child processes do: build a candidate, check and time it, compare finalists.

A candidate that crashes or hangs takes its child with it and nothing else. It comes as LLVM IR, which
TVM compiles here, or, where it was compiled elsewhere, as the path of a shared library.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np

from tvm_attention import accuracy, compiler
from tvm_attention.arrays import NumPyArrays
from tvm_attention.errors import TuningError
from tvm_attention.interleaved import Contender, interleave
from tvm_attention.kernel import Kernel
from tvm_attention.kernel_source import KernelSource
from tvm_attention.random_calls import RandomCall, random_call
from tvm_attention.schedules import Candidate
from tvm_attention.target import HardwareTarget
from tvm_attention.tuning import limits
from tvm_attention.workload import AttentionWorkload

SAMPLE_SECONDS = 0.002  # calls timed together: short ones are below the clock's noise
MEASURE_SECONDS = 0.2
LEAST_SAMPLES = 5
HOPELESS = 3.0  # times slower than the best so far: timed once
CONFIRM_SECONDS = 1.0  # a finalist
# Beyond the accuracy the library promises: random inputs come near that bound, faults go far past it.
ERROR_LIMIT = 4.0

Built = str | Path
"""A kernel's LLVM IR, or its shared library."""


@dataclass(frozen=True, slots=True)
class Finalist:
    """Seconds of a call (median), and its ratio to the default schedule's (median and quartiles)."""

    seconds: float
    ratio: float
    low: float
    high: float


def start(more_bytes: int, niceness: int) -> None:
    """Begin a process: import what every task needs, and limit what tasks may take beyond that."""
    from tvm_attention._tvm import import_tvm

    import_tvm()
    limits.restrict(more_bytes, niceness)


def builder_start(builders: int) -> Callable[[], None]:
    """What begins each of that many processes that build."""
    return partial(start, limits.builder_bytes(builders), limits.BUILDER_NICENESS)


def build(workload: AttentionWorkload, target: HardwareTarget, candidate: Candidate) -> str:
    """The LLVM IR of a candidate."""
    return compiler.build_source(workload, target, candidate)


def measure(
    source: Built, workload: AttentionWorkload, candidate: Candidate, threads: int, best: float
) -> float:
    """Seconds of a call, after its result was found right. Raises TuningError for a wrong one."""
    call, outputs = _prepared(source, workload, candidate, threads)
    _check(call, outputs, workload)
    first = min(_timed(call, 1), _timed(call, 1))
    if first > HOPELESS * best:
        return first
    calls = max(1, round(SAMPLE_SECONDS / first))
    samples: list[float] = []
    end = time.perf_counter() + MEASURE_SECONDS
    while len(samples) < LEAST_SAMPLES or time.perf_counter() < end:
        samples.append(_timed(call, calls))
    # Another process's burst makes samples slower, nothing makes them faster.
    return float(np.percentile(samples, 25))


def confirm(
    sources: Sequence[Built],
    workload: AttentionWorkload,
    candidates: list[Candidate],
    threads: int,
) -> list[Finalist]:
    """Time candidates against each other in turns, the first being the default schedule.

    Each is checked on the workload and on lengths off every tile size. Raises TuningError naming a
    candidate that is wrong anywhere.
    """
    calls = []
    for source, candidate in zip(sources, candidates, strict=True):
        for other in neighbours(workload):
            call, outputs = _prepared(source, other, candidate, threads)
            _check(call, outputs, other)
        call, outputs = _prepared(source, workload, candidate, threads)
        _check(call, outputs, workload)
        calls.append(call)
    names = [str(n) for n in range(len(calls))]
    contenders = [Contender(n, c) for n, c in zip(names, calls, strict=True)]
    rounds = interleave(contenders, CONFIRM_SECONDS * len(calls), least=5)
    results = []
    for name in names:
        ratio = rounds.ratio(name, "0")
        results.append(Finalist(rounds.time(name).median, ratio.median, ratio.q1, ratio.q3))
    return results


def neighbours(w: AttentionWorkload) -> list[AttentionWorkload]:
    """Small workloads of the same kernel at awkward lengths."""
    if w.length_class.startswith("decode"):
        return [w.with_lengths(w.query_length, n) for n in (1, 17, 333)]
    small = replace(w, batch=2, query_heads=2, kv_heads=1)
    return [small.with_lengths(*n) for n in ((9, 9), (67, 131), (130, 70), (33, 1100))]


@lru_cache(maxsize=8)
def _problem(workload: AttentionWorkload) -> RandomCall:
    return random_call(workload)


def _prepared(
    source: Built, workload: AttentionWorkload, candidate: Candidate, threads: int
) -> tuple[Callable[[], None], tuple[Any, Any]]:
    """A call on this process's inputs, and what it writes: the result and, or None, the log-sum-exp."""
    kernel = _kernel(source, workload, candidate, threads)
    kind, problem = NumPyArrays(), _problem(workload)
    out, lse = problem.outputs(workload.output)
    arrays = (*problem.arrays, out)
    prepared = kernel.prepare(kind, problem.call, tuple(kind.strides(x) for x in arrays), lse)
    addresses = [kind.address(x) for x in arrays]

    def run(
        _kept: Any = (arrays, lse, problem),
    ) -> None:  # addresses alone would not keep the memory
        prepared.run(*addresses)

    return run, (out, lse)


@lru_cache(maxsize=8)
def _compiled(source: Built) -> compiler.CompiledKernel:
    if isinstance(source, Path):
        return compiler.load_library(source)
    return compiler.load_source(source)


def _kernel(
    source: Built, workload: AttentionWorkload, candidate: Candidate, threads: int
) -> Kernel:
    origin = KernelSource(candidate, None, "tuning", ())
    return Kernel(workload, origin, _compiled(source), threads)


def _check(call: Any, outputs: tuple[Any, Any], workload: AttentionWorkload) -> None:
    out, lse = outputs
    for written in outputs:
        if written is not None:
            written.fill(np.nan)
    call()
    require_right(out, lse, workload, _problem(workload))


def require_right(out: Any, lse: Any, workload: AttentionWorkload, problem: RandomCall) -> None:
    """Raises TuningError for a result, or a log-sum-exp unless that is None, that is wrong."""
    given: dict[str, Any] = {"options": problem.options}
    found = [accuracy.compare(out, *problem.inputs, workload, **given)]
    if lse is not None:
        found.append(accuracy.compare_lse(lse, *problem.inputs, workload, **given))
    for one in found:
        if not one.max_error <= ERROR_LIMIT * one.allowed:
            raise TuningError(f"wrong result: error {one.max_error:.1e}")


def _timed(call: Any, calls: int) -> float:
    start = time.perf_counter()
    for _ in range(calls):
        call()
    return (time.perf_counter() - start) / calls
