"""From a candidate to functions in a GPU's memory, by way of the cache on disk."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Callable
from importlib.metadata import version

from tvm_attention import kernel_cache
from tvm_attention.cuda.building import device_code, whole_source
from tvm_attention.cuda.compilers import compiler, require_driver
from tvm_attention.cuda.driver import LoadedModule, driver
from tvm_attention.cuda.kernel import DeviceKernel
from tvm_attention.device_code import DeviceCode
from tvm_attention.digest import CUDA_EXPRESSION_DIGEST
from tvm_attention.errors import UnsupportedError
from tvm_attention.kernel_source import KernelSource
from tvm_attention.schedules import Candidate
from tvm_attention.schedules.cuda_space import FUSED_SPLIT_KV
from tvm_attention.target import HardwareTarget
from tvm_attention.workload import AttentionWorkload

_FORMAT = 1  # of a cached kernel: bump when lowering or what is stored changes


def device_kernel(
    workload: AttentionWorkload, target: HardwareTarget, source: KernelSource
) -> DeviceKernel:
    """The kernel of a workload for GPUs of one compute capability. It is built with its first call.

    Raises UnsupportedError where there is no driver.
    """
    driver()
    return DeviceKernel(workload, source, _loader(workload, target))


def _loader(
    workload: AttentionWorkload, target: HardwareTarget
) -> Callable[[Candidate, int], LoadedModule]:
    def load(candidate: Candidate, device: int) -> LoadedModule:
        found = driver().arch(device)
        if found != target.arch:  # a cubin runs on its own compute capability
            raise UnsupportedError(
                f"GPU {device}: expected {target.arch}, which this kernel was loaded for, got {found}; "
                f"load one for cuda-{found}"
            )
        code, cubin = built(workload, target, candidate)
        return driver().load(code, cubin, device)

    return load


def built(
    workload: AttentionWorkload, target: HardwareTarget, candidate: Candidate
) -> tuple[DeviceCode, bytes]:
    """A candidate's code and cubin, from the cache or built into it.

    Raises KernelBuildError if there is no compiler or it fails.
    """
    key = kernel_key(workload, target, candidate)
    stored = kernel_cache.read(key)  # None for a damaged one
    if stored is not None:
        values = json.loads(stored)
        return DeviceCode.from_dict(values["code"]), base64.b64decode(values["cubin"])
    chosen = compiler()  # before TVM is imported for nothing
    require_driver(chosen, driver().version(), "this machine")
    code = device_code(workload, target, candidate)
    cubin = chosen.machine_code(whole_source(code), target.arch).cubin
    text = base64.b64encode(cubin).decode()
    kernel_cache.write(key, json.dumps({"code": code.to_dict(), "cubin": text}))
    return code, cubin


def kernel_key(workload: AttentionWorkload, target: HardwareTarget, candidate: Candidate) -> str:
    """Digest of all that the machine code depends on."""
    parts = {
        "format": _FORMAT,
        "expression": CUDA_EXPRESSION_DIGEST,
        "head_dim": workload.head_dim,
        "value_dim": workload.value_dim,
        "dtype": workload.dtype,
        "features": workload.kernel_features,
        "rows": workload.length_class if candidate.variant == FUSED_SPLIT_KV else "",
        "candidate": str(candidate),
        "target": target.name,
        "tvm": version("apache-tvm"),
        "library": version("tvm-attention"),
    }
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:32]
