"""Candidates for a GPU as files for a board: machine code and how it is launched."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from tvm_attention.cuda.compilers import Compiler
from tvm_attention.device_code import DeviceCode
from tvm_attention.schedules import Candidate
from tvm_attention.target import HardwareTarget
from tvm_attention.tuning import gpu_trials
from tvm_attention.workload import AttentionWorkload


def gpu_kernel(
    workload: AttentionWorkload,
    target: HardwareTarget,
    candidate: Candidate,
    compiler: Callable[[], Compiler],
) -> bytes:
    """A candidate, for :func:`read_gpu_kernel` on the board, which needs no compiler. Raises KernelBuildError
    if it cannot be built, TuningError if it spills."""
    code, cubin = gpu_trials.build(workload, target, candidate, compiler=compiler)
    launched = replace(code, source="").to_dict()  # the source runs nowhere
    text = base64.b64encode(cubin).decode()
    return json.dumps({"code": launched, "cubin": text}).encode()


def read_gpu_kernel(path: Path) -> gpu_trials.Built:
    """What :func:`gpu_kernel` made."""
    values = json.loads(path.read_bytes())
    return DeviceCode.from_dict(values["code"]), base64.b64decode(values["cubin"])
