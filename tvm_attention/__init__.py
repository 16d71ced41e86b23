"""Attention kernels written once as TVM tensor expressions and tuned for each machine.

Each name is imported from its module when it is first asked for, so that the command line starts at
once and a program that only detects hardware loads no more than that.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tvm_attention.archives import load_archive
    from tvm_attention.errors import (
        AttentionError,
        InvalidTypeError,
        InvalidValueError,
        KernelBuildError,
        TuningError,
        TuningLogError,
        TuningLogWarning,
        UnsupportedError,
    )
    from tvm_attention.functional import attention, scaled_dot_product_attention
    from tvm_attention.kernel import Kernel
    from tvm_attention.kernel_source import KernelSource
    from tvm_attention.kv_cache import KVCache, PagedKVCache, paged_attention, quantise
    from tvm_attention.loading import load
    from tvm_attention.modelling import tune_modelled
    from tvm_attention.multi_head import MultiHeadAttention
    from tvm_attention.plotting import plot_attention
    from tvm_attention.runtime import Explanation, explain
    from tvm_attention.target import HardwareTarget, detect_target
    from tvm_attention.tuning import TuningOutcome, TuningProgress, TuningResult, tune
    from tvm_attention.varlen import attention_varlen
    from tvm_attention.workload import AttentionWorkload

__version__ = "0.1.0"

__all__ = [
    "AttentionError",
    "AttentionWorkload",
    "Explanation",
    "HardwareTarget",
    "InvalidTypeError",
    "InvalidValueError",
    "KVCache",
    "Kernel",
    "KernelBuildError",
    "KernelSource",
    "MultiHeadAttention",
    "PagedKVCache",
    "TuningError",
    "TuningLogError",
    "TuningLogWarning",
    "TuningOutcome",
    "TuningProgress",
    "TuningResult",
    "UnsupportedError",
    "attention",
    "attention_varlen",
    "detect_target",
    "explain",
    "load",
    "load_archive",
    "paged_attention",
    "plot_attention",
    "quantise",
    "scaled_dot_product_attention",
    "tune",
    "tune_modelled",
]

_MODULES = {
    "archives": ("load_archive",),
    "errors": (
        "AttentionError", "InvalidTypeError", "InvalidValueError", "KernelBuildError", "TuningError",
        "TuningLogError", "TuningLogWarning", "UnsupportedError",
    ),
    "functional": ("attention", "scaled_dot_product_attention"),
    "kernel": ("Kernel",),
    "kernel_source": ("KernelSource",),
    "kv_cache": ("KVCache", "PagedKVCache", "paged_attention", "quantise"),
    "loading": ("load",),
    "modelling": ("tune_modelled",),
    "multi_head": ("MultiHeadAttention",),
    "plotting": ("plot_attention",),
    "boards": (),  # modules to be asked for by their names
    "onnx": (),
    "runtime": ("Explanation", "explain"),
    "target": ("HardwareTarget", "detect_target"),
    "torch": (),
    "tuning": ("TuningOutcome", "TuningProgress", "TuningResult", "tune"),
    "varlen": ("attention_varlen",),
    "workload": ("AttentionWorkload",),
}  # fmt: skip
_MODULE_OF = {name: module for module, names in _MODULES.items() for name in names}


if not TYPE_CHECKING:  # or a misspelt name would pass for an object

    def __getattr__(name: str) -> object:
        module = name if name in _MODULES else _MODULE_OF.get(name)
        if module is None:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        try:
            found = import_module(f"{__name__}.{module}")
        except ModuleNotFoundError as error:
            if error.name is None or error.name.startswith(__name__):
                raise
            raise ModuleNotFoundError(
                f"{__name__}.{name} needs package {error.name}, which is not installed: pip install "
                f"tvm-attention brings all that it depends on; with NumPy alone, archives serve "
                f"(load_archive) and nothing is built, tuned or explained",
                name=error.name,
            ) from error
        if name in _MODULES:
            return found
        value = globals()[name] = getattr(found, name)
        return value

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__, *_MODULES})
