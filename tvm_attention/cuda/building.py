"""From a candidate to CUDA source, and from that to machine code."""

from __future__ import annotations

from importlib.resources import files
from typing import Any

from tvm_attention._tvm import import_tvm
from tvm_attention.device_code import TENSOR_PRODUCT, WAIT_FOR_COPIES, DeviceCode
from tvm_attention.errors import KernelBuildError
from tvm_attention.schedules import Candidate, cuda
from tvm_attention.target import HardwareTarget
from tvm_attention.workload import AttentionWorkload

# What is put before the source of kernels that call a function of it.
_HEADERS = {"tensor_cores.cuh": TENSOR_PRODUCT, "copies.cuh": WAIT_FOR_COPIES}


def device_code(
    workload: AttentionWorkload, target: HardwareTarget, candidate: Candidate
) -> DeviceCode:
    """The CUDA source of a candidate and its functions. Needs no CUDA toolkit.

    Raises KernelBuildError if TVM cannot build it or it exceeds the target's limits.
    """
    import_tvm()
    from tvm_attention.lowering.device import lower_device
    from tvm_attention.lowering.device_source import device_source
    from tvm_attention.schedules.cuda_fused import tiles_of

    try:
        schedule = cuda.build(workload, cuda.machine_parameters(target), candidate)
        func = lower_device(schedule.mod["main"], workload, tiles_of(workload, candidate))
        return device_source(func, tvm_target(target), "attention")
    except KernelBuildError:
        raise
    except Exception as error:
        raise KernelBuildError(
            f"TVM could not build {candidate} for {target.name}: {error}"
        ) from error


def tvm_target(target: HardwareTarget) -> dict[str, Any]:
    """The argument of tvm.target.Target for a GPU."""
    machine = cuda.machine_parameters(target)
    return {
        "kind": "cuda",
        "arch": target.arch,
        "max_threads_per_block": machine.threads_per_block,
        "max_shared_memory_per_block": machine.shared_per_block,
        "thread_warp_size": machine.warp,
    }


def whole_source(code: DeviceCode) -> str:
    """The source with what it needs before it."""
    folder = files("tvm_attention.cuda")
    names = ["prelude.cuh"]
    names += [name for name, function in _HEADERS.items() if function in code.source]
    before = [folder.joinpath(name).read_text("utf-8") for name in names]
    return "".join(before) + code.source
