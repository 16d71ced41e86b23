"""From a workload to a kernel: match a record, load or build its kernel, say why."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from functools import cache
from types import ModuleType
from typing import Any

from tvm_attention import environment
from tvm_attention.compiler import CompiledKernel, kernel_key, load_kernel
from tvm_attention.cuda.loading import device_kernel
from tvm_attention.database import (
    Match,
    TuningLog,
    TuningRecord,
    available_logs,
    match,
    warn_of_refusals,
)
from tvm_attention.digest import CUDA_EXPRESSION_DIGEST, EXPRESSION_DIGEST
from tvm_attention.errors import InvalidTypeError, InvalidValueError, UnsupportedError
from tvm_attention.kernel import Kernel
from tvm_attention.kernel_source import KernelSource
from tvm_attention.operands import check_threads
from tvm_attention.schedules import Candidate, DesignSpace, schedules_for
from tvm_attention.target import (
    HardwareTarget,
    check_runnable,
    cut_down,
    detect_target,
    named_target,
)
from tvm_attention.workload import AttentionWorkload
from tvm_attention.workload_text import feature_text

_lock = threading.RLock()
_kernels: dict[tuple[object, ...], Kernel] = {}
_machine_code: dict[str, CompiledKernel] = {}
_logs: list[TuningLog] | None = None


@dataclass(frozen=True, slots=True)
class Explanation:
    """Which schedule serves a workload on a target, and every other that was considered."""

    workload: AttentionWorkload
    target: HardwareTarget
    source: KernelSource

    def to_dict(self) -> dict[str, object]:
        """The same as plain data."""
        record = self.source.record
        return {
            "workload": self.workload.to_dict(),
            "length_class": self.workload.length_class,
            "target": self.target.name,
            "taken": self.source.kind,
            "rung": self.source.rung,
            "variant": self.source.candidate.variant,
            "decisions": dict(self.source.candidate.decisions),
            "record": None if record is None else record.to_dict(),
            "reasons": list(self.source.reasons),
        }

    def __str__(self) -> str:
        w = self.workload
        lines = [
            f"workload: head_dim={w.head_dim} value_dim={w.value_dim} dtype={w.dtype} "
            f"causal={w.causal} length class {w.length_class}; {feature_text(w)}",
            f"target: {self.target.name} ({self.target.model or 'not this machine'})",
            f"taken: {self.source}",
            *(f"  {reason}" for reason in self.source.reasons),
        ]
        return "\n".join(lines)


def load(
    workload: AttentionWorkload,
    target: str | HardwareTarget | None = None,
    num_threads: int | None = None,
) -> Kernel:
    """The kernel that fits a workload on a target (default: this machine).

    The best tuning record is matched, its kernel taken from the disk cache or built (about half a
    second). ``target`` is a level this machine can run ("x86-64-v3"), or a GPU's ("cuda-sm_87"), whose
    kernel takes torch tensors on such a GPU; ``num_threads`` defaults to TVM_ATTENTION_NUM_THREADS, else
    what the process's thread pool is set to.

    Raises InvalidTypeError, InvalidValueError, UnsupportedError or KernelBuildError.
    """
    _check_workload(workload)
    check_threads(num_threads)
    hardware = _target(target)
    if hardware.kind != "cuda":
        check_runnable(hardware)
    threads = num_threads or environment.num_threads()
    key = (*_neighbourhood(workload), hardware, threads)
    kernel = _kernels.get(key)
    if kernel is None:
        with _lock:
            kernel = _kernels.get(key)
            if kernel is None:
                source = select(workload, hardware)
                if hardware.kind == "cuda":
                    kernel = _kernels[key] = device_kernel(workload, hardware, source)
                    return kernel
                built_for = hardware if source.level is None else cut_down(hardware, source.level)
                compiled = _compiled(workload, built_for, source.candidate)
                kernel = _kernels[key] = Kernel(workload, source, compiled, threads)
    return kernel


def _neighbourhood(w: AttentionWorkload) -> tuple[object, ...]:
    """Workloads that are served alike: a sentence one word longer must not be matched anew."""
    sizes = (w.batch * w.query_heads, w.query_length, w.key_length)
    dims = (w.head_dim, w.value_dim, w.dtype, w.causal, w.length_class, *w.kernel_features)
    return (*dims, *(n.bit_length() for n in sizes))


def _compiled(
    workload: AttentionWorkload, target: HardwareTarget, candidate: Candidate
) -> CompiledKernel:
    key = kernel_key(workload, target, candidate)
    if key not in _machine_code:
        _machine_code[key] = load_kernel(workload, target, candidate)
    return _machine_code[key]


def explain(workload: AttentionWorkload, target: str | HardwareTarget | None = None) -> Explanation:
    """What :func:`load` would take for a workload, and why; builds nothing.

    Raises as :func:`load` does, but takes any HardwareTarget.
    """
    _check_workload(workload)
    hardware = _target(target)
    return Explanation(workload, hardware, select(workload, hardware))


def select(workload: AttentionWorkload, target: HardwareTarget) -> KernelSource:
    """The candidate to build: of the best matching record, else the default schedule's."""

    schedules, machine = _machine(target)
    default = schedules.default_candidate(workload, machine)

    @cache
    def level(isa: str) -> tuple[Any, DesignSpace]:
        _, narrower = _machine(target if isa == target.isa else cut_down(target, isa))
        return narrower, schedules.design_space(workload, narrower)

    @cache
    def multiplies_tiles(name: str) -> bool:
        try:
            unit: bool = _machine(named_target(name))[1].multiplies_tiles(workload.dtype)
        except (InvalidValueError, UnsupportedError):  # a name of another version, or made up
            return False
        return unit

    def legal(record: TuningRecord) -> str | None:
        candidate = Candidate.of(record.variant, record.decisions)
        if target.kind == "cuda":  # a kernel is built for the GPU itself, whose limits may be lower
            own: DesignSpace = schedules.design_space(workload, machine)
            return own.refusal(candidate)
        built_for, space = level(record.hardware["isa"])
        if built_for.lanes < machine.lanes:  # slower than the default schedule of wider ones
            return f"its vectors have {built_for.lanes} lanes, the default schedule's here {machine.lanes}"
        if default.variant in ("matrix", "matrix_decode") and not multiplies_tiles(record.target):
            return "it was found without a matrix unit, which the default schedule here uses"
        return space.refusal(candidate)

    expression = CUDA_EXPRESSION_DIGEST if target.kind == "cuda" else EXPRESSION_DIGEST
    found: Match = match(workload, target, _read_logs(), legal=legal, expression=expression)
    record = found.record
    if record is None:
        return KernelSource(default, None, found.rung, found.reasons)
    candidate, isa = Candidate.of(record.variant, record.decisions), record.hardware["isa"]
    lower = None if isa == target.isa or target.kind == "cuda" else isa
    reasons = found.reasons
    if lower is None and candidate == schedules.default_candidate(record.workload, machine):
        # It says that the rule is right near here, and the rule knows what a neighbour's sizes change.
        candidate, (taken, *others) = default, reasons
        reasons = (
            f"{taken}; it is its own workload's default schedule, so this one's is taken",
            *others,
        )
    return KernelSource(candidate, record, found.rung, reasons, lower)


def _machine(target: HardwareTarget) -> tuple[ModuleType, Any]:
    schedules = schedules_for(target)
    return schedules, schedules.machine_parameters(target)


def _read_logs() -> list[TuningLog]:
    global _logs
    with _lock:
        if _logs is None:
            _logs = list(available_logs())
            warn_of_refusals(_logs)
        return _logs


def forget_kernels() -> None:
    """Drop the selections of this process, so that new tuning records are seen by the next load."""
    global _logs
    with _lock:
        _kernels.clear()
        _logs = None


def _target(target: str | HardwareTarget | None) -> HardwareTarget:
    if isinstance(target, HardwareTarget):
        return target
    if target is not None and not isinstance(target, str):
        raise InvalidTypeError(
            f"target: expected a name, a HardwareTarget or None, got {type(target).__name__}"
        )
    if target is not None and target.strip().lower().startswith("cuda-"):
        return named_target(target)
    return detect_target(target)


def _check_workload(workload: AttentionWorkload) -> None:
    if not isinstance(workload, AttentionWorkload):
        raise InvalidTypeError(
            f"workload: expected an AttentionWorkload, got {type(workload).__name__}"
        )
