"""Which kernel serves a workload: of an archive that was loaded, else one built here."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tvm_attention import archives
from tvm_attention._tvm import compiler_missing
from tvm_attention.errors import KernelBuildError
from tvm_attention.kernel import Kernel
from tvm_attention.workload import AttentionWorkload

if TYPE_CHECKING:
    from tvm_attention.target import HardwareTarget


def load(
    workload: AttentionWorkload,
    target: str | HardwareTarget | None = None,
    num_threads: int | None = None,
) -> Kernel:
    """The kernel that fits a workload on a target (default: this machine).

    An archive that was loaded (:func:`tvm_attention.load_archive`) and serves the workload comes first.
    Otherwise the best tuning record is matched, its kernel taken from the disk cache or built (about half a
    second). ``target`` is a level this machine can run ("x86-64-v3"), or a GPU's ("cuda-sm_87"), whose
    kernel takes torch tensors on such a GPU; archives are asked only without one. ``num_threads`` defaults
    to TVM_ATTENTION_NUM_THREADS, else what the process's thread pool is set to; of an archive's own pool,
    one for each core the process may run on.

    Raises InvalidTypeError, InvalidValueError, UnsupportedError or KernelBuildError: the last, with the
    command that exports such a kernel, where no archive has it and no compiler is here.
    """
    if target is None:
        kernel = archives.kernel_for(workload, num_threads)
        if kernel is not None:
            return kernel
    missing = compiler_missing()
    if missing is not None:
        raise KernelBuildError(archives.unserved(workload, missing))
    from tvm_attention import runtime

    return runtime.load(workload, target, num_threads)
