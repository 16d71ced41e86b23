"""Attention kernels written once as TVM tensor expressions and tuned for each machine."""

from tvm_attention.errors import (
    AttentionError,
    InvalidTypeError,
    InvalidValueError,
    KernelBuildError,
    TuningError,
    TuningLogError,
    UnsupportedError,
)
from tvm_attention.functional import scaled_dot_product_attention
from tvm_attention.kernel import Kernel, KernelSource
from tvm_attention.runtime import Explanation, explain, load
from tvm_attention.target import HardwareTarget, detect_target
from tvm_attention.tuning import TuningOutcome, TuningProgress, TuningResult, tune
from tvm_attention.workload import AttentionWorkload

__version__ = "0.1.0"

__all__ = [
    "AttentionError",
    "AttentionWorkload",
    "Explanation",
    "HardwareTarget",
    "InvalidTypeError",
    "InvalidValueError",
    "Kernel",
    "KernelBuildError",
    "KernelSource",
    "TuningError",
    "TuningLogError",
    "TuningOutcome",
    "TuningProgress",
    "TuningResult",
    "UnsupportedError",
    "detect_target",
    "explain",
    "load",
    "scaled_dot_product_attention",
    "tune",
]
