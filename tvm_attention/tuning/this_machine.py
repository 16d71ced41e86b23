"""Measuring on the machine that searches."""

from __future__ import annotations

from tvm_attention import environment
from tvm_attention.caches import cpu_list
from tvm_attention.database import Provenance
from tvm_attention.memory_needed import require_memory
from tvm_attention.processor import core_kinds, usable_cpus
from tvm_attention.target import HardwareTarget, detect_target
from tvm_attention.tuning.place import Say
from tvm_attention.tuning.workers import LocalWorkers
from tvm_attention.workload import AttentionWorkload


class ThisMachine:
    """The place of measurement (``tvm_attention.tuning.place``) that needs no other machine."""

    def hardware(self, target: str | HardwareTarget | None) -> HardwareTarget:
        return target if isinstance(target, HardwareTarget) else detect_target(target)

    def threads(self, hardware: HardwareTarget) -> int:
        return environment.num_threads() or hardware.cores

    def require_memory(self, workload: AttentionWorkload) -> None:
        require_memory(workload)

    def workers(self, hardware: HardwareTarget, say: Say) -> LocalWorkers:
        return LocalWorkers(hardware.cores)

    def provenance(self, hardware: HardwareTarget, trials: int) -> Provenance:
        cpus = usable_cpus()
        return Provenance(
            kind="measured",
            on=hardware.model or hardware.name,
            trials=trials,
            cpus=cpu_list(cpus),
            cores=core_kinds(cpus),
        )
