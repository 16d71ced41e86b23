"""From a candidate to machine code: build, and keep in memory what was built."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from tvm_attention import kernel_cache, matrix_unit
from tvm_attention._tvm import import_tvm, load_tvm_libraries, signals_left_alone
from tvm_attention.digest import EXPRESSION_DIGEST
from tvm_attention.errors import KernelBuildError
from tvm_attention.schedules import Candidate, schedules_for
from tvm_attention.target import HardwareTarget
from tvm_attention.threads import bind_function, launcher
from tvm_attention.workload import AttentionWorkload

_FORMAT = 3  # of a cached kernel: bump when lowering or the calling convention changes


@dataclass(frozen=True, slots=True)
class CompiledKernel:
    """A kernel in memory, bound to the process's thread pool.

    ``main(query, key, value, out, workspace, *scalars, *strides)`` computes; ``workspace(*scalars)``
    says how many bytes of workspace it needs (tvm_attention.lowering has the calling convention).
    """

    main: Any
    workspace: Any
    module: Any


def load_kernel(
    workload: AttentionWorkload, target: HardwareTarget, candidate: Candidate
) -> CompiledKernel:
    """The kernel of a candidate, from the disk cache or built into it.

    Raises KernelBuildError if TVM cannot build or load it.
    """
    key = kernel_key(workload, target, candidate)
    source = kernel_cache.read(key)
    if source is not None:
        try:
            return load_source(source)
        except Exception:  # not what this TVM writes, or this process's own trouble: build it again
            pass
    source = build_source(workload, target, candidate)
    kernel_cache.write(key, source)
    return load_source(source)


def kernel_key(workload: AttentionWorkload, target: HardwareTarget, candidate: Candidate) -> str:
    """Digest of all that the machine code depends on."""
    parts = {
        "format": _FORMAT,
        "expression": EXPRESSION_DIGEST,
        "head_dim": workload.head_dim,
        "value_dim": workload.value_dim,
        "dtype": workload.dtype,
        "features": workload.kernel_features,
        "rows": workload.length_class if candidate.decodes else "",
        "candidate": str(candidate),
        "target": {k: v for k, v in target.llvm().items() if k != "num-cores"},
        "tvm": version("apache-tvm"),
        "library": version("tvm-attention"),
    }
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:32]


def build_module(workload: AttentionWorkload, target: HardwareTarget, candidate: Candidate) -> Any:
    """Compile a candidate in this process: TVM's runtime module, not yet bound to a thread pool."""
    import_tvm()
    from tvm_attention.lowering import lower
    from tvm_attention.lowering.machine_code import compiled

    schedules = schedules_for(target)
    try:
        with signals_left_alone():
            machine = schedules.machine_parameters(target)
            schedule = schedules.build(workload, machine, candidate)
            lowered = lower(
                schedule.mod["main"],
                workload,
                element_operand=machine.element_operand,
                bfmmla=machine.bfmmla,
            )
            functions = {
                "main": lowered.main,
                "workspace": lowered.workspace,
                "bind_launch": bind_function(),
            }
            return compiled(functions, target)
    except Exception as error:
        raise KernelBuildError(
            f"TVM could not build {candidate} for {target.name}: {error}; "
            f"`tvm-attention doctor` checks the installation"
        ) from error


def build_source(workload: AttentionWorkload, target: HardwareTarget, candidate: Candidate) -> str:
    """The optimised LLVM IR of a candidate: what the cache keeps, for it needs no linker to load."""
    source: str = build_module(workload, target, candidate).mod.inspect_source("ll")
    return source


def load_source(source: str) -> CompiledKernel:
    """A kernel from its LLVM IR, bound to this process's thread pool.

    Raises KernelBuildError for one that uses a matrix unit this process may not use.
    """
    if matrix_unit.INSTRUCTION in source and not matrix_unit.permitted():
        raise KernelBuildError(
            "kernel: expected leave of the operating system to use the processor's matrix unit (AMX), got "
            "a refusal; set TVM_ATTENTION_TARGET=x86-64-v4 to do without it"
        )
    ffi = load_tvm_libraries()
    with kernel_cache.readable_file(source) as path:
        return _bound(ffi.load_module(str(path)))


def load_library(path: Path) -> CompiledKernel:
    """A kernel from a shared library linked of a :func:`build_module`, bound to this process's thread
    pool; no compiler has a part in it. A file name serves once: the system knows libraries by them.

    Raises KernelBuildError for what cannot be loaded.
    """
    matrix_unit.permitted()  # the library does not say whether it uses one
    try:
        return _bound(load_tvm_libraries().load_module(str(path)))
    except (AttributeError, RuntimeError, OSError, ValueError) as error:
        raise KernelBuildError(f"a kernel's library could not be loaded: {error}") from error


def _bound(module: Any) -> CompiledKernel:
    launcher().bind(module, counted=True)
    return CompiledKernel(module["main"], module["workspace"], module)
