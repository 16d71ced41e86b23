"""Candidates built, checked and timed on a GPU of this machine, by the driver alone: what tuning's child
processes do there. The counterpart of tvm_attention.tuning.trials."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache, lru_cache
from typing import Any

import numpy as np

from tvm_attention.call import Call
from tvm_attention.cuda import driver as driving
from tvm_attention.cuda.building import device_code, whole_source
from tvm_attention.cuda.compilers import Compiler
from tvm_attention.cuda.compilers import compiler as this_compiler
from tvm_attention.cuda.device_arrays import DeviceArrays
from tvm_attention.cuda.driver import LoadedModule
from tvm_attention.cuda.kernel import DeviceKernel
from tvm_attention.cuda.memory import DeviceMemory
from tvm_attention.device_code import DeviceCode
from tvm_attention.errors import KernelBuildError, TuningError
from tvm_attention.kernel_source import KernelSource
from tvm_attention.options import opened_options
from tvm_attention.random_calls import RandomCall, random_call
from tvm_attention.schedules import Candidate
from tvm_attention.schedules.cuda_space import kernel_of
from tvm_attention.target import HardwareTarget
from tvm_attention.tuning import trials
from tvm_attention.tuning.trials import Finalist
from tvm_attention.workload import AttentionWorkload

SAMPLES = 9
ROUNDS = 25
FAULT = 70  # exit code of a process whose GPU failed: its context is of no use any more
_STREAM = 0

Built = tuple[DeviceCode, bytes]
"""A kernel's code and its cubin."""


def build(
    workload: AttentionWorkload,
    target: HardwareTarget,
    candidate: Candidate,
    *,
    compiler: Callable[[], Compiler] = this_compiler,
) -> Built:
    """A candidate's machine code. Raises KernelBuildError if it cannot be built, TuningError if it spills."""
    code = device_code(kernel_of(workload), target, candidate)
    made = compiler().machine_code(whole_source(code), target.arch)
    if any(r.spilled_bytes for r in made.resources.values()):
        raise TuningError("it spills registers")
    return code, made.cubin


def measure(
    built: Built, workload: AttentionWorkload, candidate: Candidate, threads: int, best: float,
    *, device: int = 0,
) -> float:  # fmt: skip
    """Seconds of a call with cold caches, after its result was found right. Raises TuningError for a wrong
    one; a fault of the GPU ends the process."""
    try:
        call = _prepared(built, workload, candidate, device)
        first = _seconds(device, [call])[0]
        if first > trials.HOPELESS * best:
            return first
        return float(np.median(_seconds(device, [call] * SAMPLES)))
    except KernelBuildError as error:
        _end(error)
        raise


def confirm(
    built: Sequence[Built], workload: AttentionWorkload, candidates: Sequence[Candidate],
    threads: int, *, device: int = 0,
) -> list[Finalist]:  # fmt: skip
    """Time candidates against each other in turns, the first being the default schedule.

    Each is checked on the workload and on lengths off every tile size. Raises TuningError naming a
    candidate that is wrong anywhere.
    """
    try:
        calls = []
        for one, candidate in zip(built, candidates, strict=True):
            for other in trials.neighbours(workload):
                _prepared(one, other, candidate, device)
            calls.append(_prepared(one, workload, candidate, device))
        rounds = np.array([_round(device, calls, turned=bool(n % 2)) for n in range(ROUNDS)])
    except KernelBuildError as error:
        _end(error)
        raise
    ratios = np.percentile(rounds / rounds[:, :1], (50, 25, 75), axis=0)
    medians = np.median(rounds, axis=0)
    return [Finalist(float(m), *map(float, r)) for m, r in zip(medians, ratios.T, strict=True)]


def _round(device: int, calls: list[Callable[[], None]], turned: bool) -> list[float]:
    found = _seconds(device, calls[::-1] if turned else calls)
    return found[::-1] if turned else found


def _end(error: KernelBuildError) -> None:
    """Where nothing is built any more, what failed is the GPU."""
    print(f"tuning: {error}", flush=True)
    os._exit(FAULT)


def _prepared(
    built: Built, workload: AttentionWorkload, candidate: Candidate, device: int
) -> Callable[[], None]:
    """A call whose result is right."""
    kind, problem = DeviceArrays(device, _STREAM), _problem(workload)
    origin = KernelSource(candidate, None, "tuning", ())
    kernel = DeviceKernel(workload, origin, _loader(built, candidate))
    arrays, call = _uploaded(workload, device)
    host_out, host_lse = problem.outputs(workload.output)
    out = kind.uploaded(np.full_like(host_out, np.nan), None)
    lse = None if host_lse is None else kind.uploaded(np.full_like(host_lse, np.nan), None)

    def run() -> None:
        kernel.compute(kind, call, arrays, out, lse)

    run()
    read = [None if x is None else kind.read(x) for x in (out, lse)]
    trials.require_right(read[0], read[1], workload, problem)
    return run


def _loader(built: Built, candidate: Candidate) -> Callable[[Candidate, int], LoadedModule]:
    def load(chosen: Candidate, device: int) -> LoadedModule:
        assert chosen == candidate, "arrays of our own suit all vectors"
        return driving.driver().load(*built, device)

    return load


@lru_cache(maxsize=8)
def _problem(workload: AttentionWorkload) -> RandomCall:
    return random_call(workload)


@lru_cache(maxsize=8)
def _uploaded(workload: AttentionWorkload, device: int) -> tuple[tuple[Any, Any, Any], Call]:
    """The tensors of a call, and the call with its small arrays on the GPU: no copy is timed."""
    problem, kind = _problem(workload), DeviceArrays(device, _STREAM)

    def up(array: Any) -> Any:
        return None if array is None else kind.uploaded(np.ascontiguousarray(array), None)

    q, k, v = (up(x) for x in problem.arrays)
    call, options = problem.call, dict(problem.options)
    options["mask"] = up(options.get("mask"))
    opened = opened_options(kind, call.sizes, query_dtype=workload.dtype, **options)
    opened = replace(opened, alibi_slopes=up(opened.alibi_slopes), sinks=up(opened.sinks))
    pages, scales = call.pages, call.scales
    if pages is not None:
        pages = replace(pages, table=up(pages.table))
    if scales is not None:
        scales = replace(scales, key=up(scales.key), value=up(scales.value))
    there = replace(call, options=opened, ragged=up(call.ragged), pages=pages, scales=scales)
    return (q, k, v), there


@cache
def _flushed(device: int) -> tuple[DeviceMemory, int]:
    """Memory of twice the second cache: when it is written, nothing else is in there."""
    size = max(1, 2 * driving.driver().l2_bytes(device))
    return DeviceMemory(driving.driver(), device, size, _STREAM), size


def _seconds(device: int, calls: Sequence[Callable[[], None]]) -> list[float]:
    """The time of each of some calls, one after the other, by the GPU's own clock, with cold caches."""
    driver, stream = driving.driver(), ctypes.c_void_p(_STREAM)
    memory, size = _flushed(device)
    with driver.current(device):
        events = [(driver.event(), driver.event()) for _ in calls]
        for call, (start, end) in zip(calls, events, strict=True):
            place, bytes_ = ctypes.c_uint64(memory.address), ctypes.c_size_t(size)
            driver.call("cuMemsetD8Async", place, 0, bytes_, stream)
            driver.call("cuEventRecord", start, stream)
            call()
            driver.call("cuEventRecord", end, stream)
        driver.call("cuStreamSynchronize", stream)
        found = []
        for start, end in events:
            milliseconds = ctypes.c_float()
            driver.call("cuEventElapsedTime", ctypes.byref(milliseconds), start, end)
            found.append(milliseconds.value / 1e3)
            for event in (start, end):
                driver.call("cuEventDestroy_v2", event)
        return found
