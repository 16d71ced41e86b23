"""From a candidate to CUDA source, and from that to machine code."""

from __future__ import annotations

from functools import lru_cache
from importlib.resources import files
from typing import Any

from tvm_attention._tvm import import_tvm
from tvm_attention.device_code import TENSOR_PRODUCT, WAIT_FOR_COPIES, DeviceCode
from tvm_attention.errors import KernelBuildError
from tvm_attention.schedules import Candidate, cuda
from tvm_attention.target import HardwareTarget
from tvm_attention.workload import AttentionWorkload

# TVM's target. What it generates depends on no architecture: that is for the compiler of the source.
TVM_TARGET = {
    "kind": "cuda", "arch": "sm_75", "max_threads_per_block": 1024,
    "max_shared_memory_per_block": 1 << 18, "thread_warp_size": 32,
}  # fmt: skip
# What is put before the source of kernels that call a function of it.
_HEADERS = {"tensor_cores.cuh": TENSOR_PRODUCT, "copies.cuh": WAIT_FOR_COPIES}


def device_code(
    workload: AttentionWorkload, target: HardwareTarget, candidate: Candidate
) -> DeviceCode:
    """The CUDA source of a candidate and its functions. Needs no CUDA toolkit.

    Raises KernelBuildError if TVM cannot build it or it exceeds the target's limits.
    """
    import_tvm()
    from tvm_attention.lowering.device_source import check_limits

    code, kernels = _lowered(workload, candidate)
    machine = cuda.machine_parameters(target)
    check_limits(code, kernels, machine.threads_per_block, machine.shared_per_block)
    return code


@lru_cache(maxsize=4)
def _lowered(workload: AttentionWorkload, candidate: Candidate) -> tuple[DeviceCode, list[Any]]:
    """The code of a candidate, which is the same for all GPUs, and TVM's functions."""
    from tvm_attention.lowering.device import lower_device
    from tvm_attention.lowering.device_source import device_source
    from tvm_attention.schedules.cuda_fused import build, tiles_of

    try:
        schedule = build(workload, candidate)
        func = lower_device(schedule.mod["main"], workload, tiles_of(workload, candidate))
        return device_source(func, TVM_TARGET, "attention")
    except KernelBuildError:
        raise
    except Exception as error:
        raise KernelBuildError(f"TVM could not build {candidate}: {error}") from error


def whole_source(code: DeviceCode) -> str:
    """The source with what it needs before it."""
    folder = files("tvm_attention.cuda")
    names = ["prelude.cuh"]
    names += [name for name, function in _HEADERS.items() if function in code.source]
    before = [folder.joinpath(name).read_text("utf-8") for name in names]
    return "".join(before) + code.source
