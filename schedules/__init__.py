"""Schedules by kind of target: the one registry.

Each module has ``machine_parameters(target)``, ``design_space(workload, machine)``,
``default_candidate(workload, machine)``, ``starting_points(workload, machine)`` of a search and
``build(workload, machine, candidate, fixed=None)``.
"""

from types import ModuleType

from tvm_attention.errors import UnsupportedError
from tvm_attention.schedules import arm, cuda, generic, x86
from tvm_attention.schedules.candidate import Candidate, DesignSpace
from tvm_attention.schedules.device import DeviceParameters
from tvm_attention.schedules.machine import MachineParameters
from tvm_attention.target import HardwareTarget

__all__ = [
    "SCHEDULES",
    "Candidate",
    "DesignSpace",
    "DeviceParameters",
    "MachineParameters",
    "schedules_for",
]

SCHEDULES: dict[str, ModuleType] = {
    "x86": x86,
    "arm": arm,
    "cuda": cuda,
    "riscv": generic,
    "wasm": generic,
}


def schedules_for(target: HardwareTarget) -> ModuleType:
    """The schedule module of a target; UnsupportedError when there is none."""
    try:
        return SCHEDULES[target.kind]
    except KeyError:
        raise UnsupportedError(
            f"target {target.name}: expected a kind among {', '.join(SCHEDULES)}, got {target.kind}"
        ) from None
