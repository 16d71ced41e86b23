"""Measuring on a GPU of the machine that searches."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from tvm_attention.cuda import driver as driving
from tvm_attention.cuda.compilers import Compiler, require_driver
from tvm_attention.cuda.compilers import compiler as this_compiler
from tvm_attention.database import Provenance
from tvm_attention.errors import InvalidValueError
from tvm_attention.memory_needed import require_memory
from tvm_attention.processor import usable_cpus
from tvm_attention.target import HardwareTarget, named_target
from tvm_attention.tuning import gpu_trials
from tvm_attention.tuning.place import Say
from tvm_attention.tuning.workers import LocalWorkers, Tasks
from tvm_attention.workload import AttentionWorkload


class ThisGpu:
    """The place of measurement (``tvm_attention.tuning.place``) that one of this machine's GPUs is.

    device: its number. compiler: gives what compiles candidates, in the processes that build.
    """

    def __init__(self, device: int = 0, compiler: Callable[[], Compiler] = this_compiler) -> None:
        self._device, self._compiler = device, compiler

    def hardware(self, target: str | HardwareTarget | None) -> HardwareTarget:
        """The GPU. Raises UnsupportedError without a driver, KernelBuildError without a compiler,
        InvalidValueError for a target that it is not."""
        driver = driving.driver()
        own = named_target(f"cuda-{driver.arch(self._device)}")
        name = target.name if isinstance(target, HardwareTarget) else target or "cuda"
        if name.strip().lower() != "cuda" and named_target(name).name != own.name:
            raise InvalidValueError(
                f"target {name}: expected {own.name}, which GPU {self._device} of this machine is; leave "
                f"it at 'cuda', or add --modelled for a GPU that is not there"
            )
        # Before anything takes time.
        require_driver(self._compiler(), driver.version(), "this machine")
        return replace(own, model=driver.model(self._device))

    def threads(self, hardware: HardwareTarget) -> int:
        """Of the processor, which only starts kernels."""
        return 1

    def require_memory(self, workload: AttentionWorkload) -> None:
        require_memory(workload)  # of the processor, which checks results
        require_memory(workload, driving.driver().free_bytes(self._device))

    def workers(self, hardware: HardwareTarget, say: Say) -> LocalWorkers:
        tasks = Tasks(
            partial(gpu_trials.build, compiler=self._compiler),
            partial(gpu_trials.measure, device=self._device),
            partial(gpu_trials.confirm, device=self._device),
            _start,
        )
        return LocalWorkers(len(usable_cpus()), tasks)

    def provenance(self, hardware: HardwareTarget, trials: int) -> Provenance:
        return Provenance(kind="measured", on=hardware.model or hardware.name, trials=trials)


def _start() -> None:
    """Begins the process that measures: the driver maps more memory than a limit would allow."""
