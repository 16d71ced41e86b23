"""The schedules of processors that nobody has tuned for: x86's, with tiles for vectors of four numbers.

RISC-V's multiply-add takes its scalar from a register of its own, so that 32 vector registers hold tiles and
what they are multiplied with; of WebAssembly's vectors, engines on x86-64 keep 16 in registers.
"""

from __future__ import annotations

from tvm_attention.schedules.machine import MachineParameters
from tvm_attention.schedules.x86 import build, default_candidate, design_space, starting_points
from tvm_attention.target import HardwareTarget

__all__ = [
    "MACHINES",
    "build",
    "default_candidate",
    "design_space",
    "machine_parameters",
    "starting_points",
]

MACHINES = {
    "riscv64": MachineParameters(4, 32, True, 32 << 10, 256 << 10),
    "wasm32": MachineParameters(4, 16, False, 32 << 10, 256 << 10),
}


def machine_parameters(target: HardwareTarget) -> MachineParameters:
    """The architecture's parameters."""
    return MACHINES[target.isa]
