"""Machine code for a GPU and what it takes of it."""

from __future__ import annotations

import re
from dataclasses import dataclass

_FUNCTION = re.compile(r"Compiling entry function '(\w+)'")
_SPILLS = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
_REGISTERS = re.compile(r"Used (\d+) registers")


@dataclass(frozen=True, slots=True)
class Resources:
    """What a thread of a function takes: registers, bytes of stack, bytes of spilled registers."""

    registers: int
    stack_bytes: int
    spilled_bytes: int


@dataclass(frozen=True, slots=True)
class MachineCode:
    """A cubin of one compute capability ("sm_87"), the resources of its functions by name, and PTX, "" where
    the compiler does not give it by the way."""

    arch: str
    cubin: bytes
    resources: dict[str, Resources]
    ptx: str = ""


def read_resources(report: str) -> dict[str, Resources]:
    """What NVIDIA's assembler (ptxas -v) says of each function."""
    found: dict[str, Resources] = {}
    name, stack, spilled = "", 0, 0
    for line in report.splitlines():
        if (function := _FUNCTION.search(line)) is not None:
            name = function[1]
        elif (spills := _SPILLS.search(line)) is not None:
            stack, spilled = int(spills[1]), int(spills[2]) + int(spills[3])
        elif (used := _REGISTERS.search(line)) is not None:
            found[name] = Resources(int(used[1]), stack, spilled)
    return found
