"""Which kernels go into an archive: every workload for every target, chosen as the loader would."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import archspec.cpu

from tvm_attention.errors import InvalidValueError, UnsupportedError
from tvm_attention.foreign import FOREIGN
from tvm_attention.isa import ARCHITECTURES, ARM_CORES
from tvm_attention.kernel_source import KernelSource
from tvm_attention.runtime import select
from tvm_attention.splits import most_rows
from tvm_attention.target import HardwareTarget, cut_down, detect_target, named_target
from tvm_attention.workload import AttentionWorkload

NATIVE = "native"  # this machine, as detected
_IMPLEMENTERS = {
    "ARM": 0x41,
    "Cavium": 0x43,
    "Fujitsu": 0x46,
    "Nvidia": 0x4E,
    "Apple": 0x61,
    "Ampere": 0xC0,
}


@dataclass(frozen=True, slots=True)
class ExportedKernel:
    """A kernel of an archive. ``name`` is its symbols' prefix; ``target`` what its machine code needs."""

    name: str
    workload: AttentionWorkload
    target: HardwareTarget
    source: KernelSource

    @property
    def most_rows(self) -> int:
        """Query rows a key-value head that it serves at most; 0 for any."""
        return most_rows(self.workload) if self.source.candidate.decodes else 0

    @property
    def core(self) -> int:
        """The implementer and part number of the ARM core it is for, as in its MIDR_EL1; 0 for none."""
        return _core(self.target.micro_architecture) if self.target.kind == "arm" else 0


def chosen_kernels(
    workloads: Sequence[AttentionWorkload], targets: Sequence[str]
) -> dict[str, list[ExportedKernel]]:
    """Kernels by architecture ("x86_64", "aarch64"), in the order in which a processor should prefer them.

    Raises InvalidValueError or UnsupportedError for a target or workload that cannot be exported.
    """
    if not workloads or not targets:
        raise InvalidValueError("export: expected at least one workload and one target, got none")
    hardware = list(dict.fromkeys(_target(name) for name in targets))
    for workload in workloads:
        _check(workload, {target.kind for target in hardware})
    if any(t.kind not in ARCHITECTURES for t in hardware):
        raise UnsupportedError(
            "targets: expected processors, whose kernels go into C libraries, got a GPU; "
            "tvm_attention.cuda.export writes those"
        )
    hardware.sort(key=lambda t: -len(t.features))  # stable: of equals the one named first
    found: dict[str, list[ExportedKernel]] = {}
    for workload in {_identity(w): w for w in workloads}.values():
        for target in hardware:
            kernels = found.setdefault(ARCHITECTURES[target.kind], [])
            kernels.append(kernel_for(f"tvk{len(kernels)}", workload, target))
    return found


def kernel_for(name: str, workload: AttentionWorkload, target: HardwareTarget) -> ExportedKernel:
    """The kernel that the best matching record gives, else the default schedule's."""
    source = select(workload, target)
    built_for = target if source.level is None else cut_down(target, source.level)
    return ExportedKernel(name, workload, built_for, source)


def _target(name: str) -> HardwareTarget:
    return detect_target() if name.strip().lower() == NATIVE else named_target(name)


def _check(w: AttentionWorkload, kinds: set[str]) -> None:
    for foreign in (FOREIGN[kind] for kind in kinds if kind in FOREIGN):
        if foreign.refused & {w.dtype, w.mask}:
            raise UnsupportedError(
                f"dtype: expected none of {', '.join(foreign.refused)} for {foreign.architecture}, whose "
                f"code for it would be wrong; export float32 or bfloat16"
            )
    if w.output == "weights":
        raise UnsupportedError(
            "output: expected attention or attention_and_lse, got weights, which archives do not have"
        )


def _identity(w: AttentionWorkload) -> tuple[object, ...]:
    """What makes workloads one kernel."""
    return (w.head_dim, w.value_dim, w.dtype, w.length_class, *w.kernel_features)


def _core(micro_architecture: str) -> int:
    for part, (name, _) in ARM_CORES.items():
        if name == micro_architecture:
            return _IMPLEMENTERS["ARM"] << 16 | int(part, 16)
    known = archspec.cpu.TARGETS.get(micro_architecture)
    if known is None or not known.cpu_part:
        return 0
    return _IMPLEMENTERS.get(known.vendor, 0) << 16 | int(known.cpu_part, 16)
