"""Whether a candidate becomes machine code that a GPU of its architecture can run, from registers alone."""

from __future__ import annotations

from tvm_attention.cuda.building import device_code, whole_source
from tvm_attention.cuda.compilers import compiler
from tvm_attention.errors import KernelBuildError
from tvm_attention.schedules import Candidate, cuda
from tvm_attention.schedules.cuda_space import sizes_of
from tvm_attention.target import HardwareTarget
from tvm_attention.workload import AttentionWorkload

_ELF = b"\x7fELF"


def verify_candidate(
    workload: AttentionWorkload, target: HardwareTarget, candidate: Candidate
) -> None:
    """Build a candidate, check its threads and shared memory (TVM's VerifyGPUCode is part of that), compile
    it and check its registers.

    Raises KernelBuildError that says what is wrong.
    """
    machine, sizes = cuda.machine_parameters(target), sizes_of(workload, candidate)
    code = device_code(workload, target, candidate)
    made = compiler().machine_code(whole_source(code), target.arch)
    if not made.cubin.startswith(_ELF):
        raise KernelBuildError(f"{compiler().name}: expected machine code, got something else")
    for function in code.functions:
        used = made.resources.get(function.name)
        if used is None:
            raise KernelBuildError(f"{function.name}: expected the compiler to say what it takes")
        if used.spilled_bytes or used.stack_bytes:
            raise KernelBuildError(
                f"{function.name}: expected all in registers, got {used.spilled_bytes} bytes spilled "
                f"and a stack of {used.stack_bytes}"
            )
        if used.registers * sizes.threads > machine.registers:
            raise KernelBuildError(
                f"{function.name}: expected at most {machine.registers} registers in a block, got "
                f"{used.registers} in each of {sizes.threads} threads"
            )
