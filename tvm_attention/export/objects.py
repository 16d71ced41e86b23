"""From a kernel to an object file of its target, by TVM's LLVM: no other compiler has a part in it."""

from __future__ import annotations

from pathlib import Path

from tvm_attention._tvm import import_tvm
from tvm_attention.errors import KernelBuildError
from tvm_attention.export.chosen import ExportedKernel
from tvm_attention.schedules import schedules_for


def write_object(kernel: ExportedKernel, path: Path) -> None:
    """Write the object file of a kernel, whose entries are __tvm_ffi_<name>_run and
    __tvm_ffi_<name>_workspace. All its memory is in the workspace.

    Raises KernelBuildError if TVM cannot build it.
    """
    import_tvm()
    from tvm_attention.lowering import lower
    from tvm_attention.lowering.machine_code import compiled

    schedules = schedules_for(kernel.target)
    machine = schedules.machine_parameters(kernel.target)
    try:
        schedule = schedules.build(kernel.workload, machine, kernel.source.candidate)
        lowered = lower(
            schedule.mod["main"],
            kernel.workload,
            element_operand=machine.element_operand,
            bfmmla=machine.bfmmla,
            all_in_workspace=True,
        )
        parts = {"run": lowered.main, "workspace": lowered.workspace}
        functions = {
            f"{kernel.name}_{part}": function.with_attr("global_symbol", f"{kernel.name}_{part}")
            for part, function in parts.items()
        }
        compiled(functions, kernel.target).mod.write_to_file(str(path), "o")
    except Exception as error:
        raise KernelBuildError(
            f"TVM could not build {kernel.source.candidate} for {kernel.target.name}: {error}; "
            f"`tvm-attention doctor` checks the installation"
        ) from error
