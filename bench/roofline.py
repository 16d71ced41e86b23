"""The machine's own float32 multiply-add peak and read bandwidth, measured like any contender."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from bench import machine_kernels
from bench.problem import Float32, aligned
from tvm_attention import processor
from tvm_attention._tvm import import_tvm
from tvm_attention.caches import read_cores
from tvm_attention.interleaved import Contender
from tvm_attention.target import HardwareTarget, host_target
from tvm_attention.threads import BIND_FUNCTION, bind_function, launcher

FMA_PEAK = "fma peak"
READ_PEAK = "read peak"
# One call takes a few milliseconds: long against starting the threads, short against a round.
FMA_STEPS = 1_000_000
# How many places of memory a core reads from at a time; which suits the prefetchers best differs by
# machine and by size, so the fastest is taken.
READ_STREAMS = (1, 2, 4)
READ_TRIALS = 5


@dataclass(frozen=True, slots=True)
class Ceiling:
    """A contender and the work of one call: operations for the FMA peak, bytes for reads."""

    contender: Contender
    work: int


class Roofline:
    """The two kernels, compiled for everything the processor has, on ``threads`` threads."""

    def __init__(self, threads: int) -> None:
        launcher().set_num_threads(threads)
        self._threads = threads
        host = host_target(processor.local_processor(), read_cores(processor.usable_cpus()))
        self._lanes, self._chains = vector_shape(host)
        self._vectors = 4
        target = host.llvm()
        kernel = machine_kernels.multiply_add(threads, self._chains, self._lanes, FMA_STEPS)
        self._fma = compile_kernel(kernel, target)
        self._reads = {
            streams: compile_kernel(
                machine_kernels.read(threads, streams, self._vectors, self._lanes), target
            )
            for streams in READ_STREAMS
        }

    def fma_peak(self) -> Ceiling:
        """Multiply-adds that touch no memory."""
        out = aligned((self._threads, self._chains, self._lanes))
        operations = 2 * out.size * FMA_STEPS
        call = _bound(self._fma, 0.999, 0.001, _device_array(out))
        return Ceiling(Contender(FMA_PEAK, call), operations)

    def read_peak(self, memory: Float32) -> Ceiling:
        """Reading ``memory`` (flat) once, with the number of streams that is fastest on it."""
        ceilings = [self._read(memory, streams) for streams in READ_STREAMS]
        return max(ceilings, key=lambda c: c.work / _best_seconds(c.contender))

    def _read(self, memory: Float32, streams: int) -> Ceiling:
        block = self._threads * streams * self._vectors * self._lanes
        whole = memory[: len(memory) // block * block]
        data = whole.reshape(self._threads, streams, -1, self._vectors, self._lanes)
        out = aligned((self._threads, streams, self._vectors, self._lanes))
        call = _bound(self._reads[streams], _device_array(data), _device_array(out))
        return Ceiling(Contender(READ_PEAK, call), whole.nbytes)


def compile_kernel(kernel: Any, target: Mapping[str, Any]) -> Any:
    """A function whose parallel loops run where this library's own kernels run."""
    tvm = import_tvm()
    functions = {"kernel": kernel, BIND_FUNCTION: bind_function()}
    named = {name: f.with_attr("global_symbol", name) for name, f in functions.items()}
    built = tvm.compile(tvm.IRModule(named), target=tvm.target.Target(dict(target)))
    launcher().bind(built.mod)
    return built.mod["kernel"]


def vector_shape(host: HardwareTarget) -> tuple[int, int]:
    """Float lanes of the widest vector, and how many such vectors to keep in registers: enough to
    fill two units of four cycles each, and no more than there are registers."""
    if "avx512f" in host.features:
        return 16, 16
    if "avx" in host.features:
        return 8, 12
    return (4, 12) if host.kind == "x86" else (4, 16)


def _bound(kernel: Any, *arguments: Any) -> Any:
    return lambda: kernel(*arguments)


def _device_array(array: Float32) -> Any:
    import_tvm()
    import tvm_ffi

    return tvm_ffi.from_dlpack(array)


def _best_seconds(contender: Contender) -> float:
    best = float("inf")
    for _ in range(READ_TRIALS):
        start = time.perf_counter()
        contender.call()
        best = min(best, time.perf_counter() - start)
    return best
