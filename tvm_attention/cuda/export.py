"""Kernels for GPUs as files: machine code, PTX, source, and how they are launched."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from importlib.resources import files
from itertools import product
from pathlib import Path
from typing import Any

from tvm_attention.cuda.building import device_code, whole_source
from tvm_attention.cuda.compilers import Compiler, compiler
from tvm_attention.cuda.export_table import Exported, table_source
from tvm_attention.cuda.launching import WORKSPACE, grid_formulas, parameter_kinds
from tvm_attention.cuda.machine_code import MachineCode
from tvm_attention.device_code import DeviceCode
from tvm_attention.errors import InvalidValueError
from tvm_attention.runtime import select
from tvm_attention.schedules import Candidate
from tvm_attention.schedules.cuda_space import without_vectors
from tvm_attention.target import HardwareTarget, named_target
from tvm_attention.workload import AttentionWorkload

FOLDER, MANIFEST = "cuda", "manifest.json"
_SCHEMA = 1


@dataclass(frozen=True, slots=True)
class ExportedCode:
    """A kernel that was written: for what, chosen how, to which files (their names without ending)."""

    name: str
    workload: AttentionWorkload
    target: HardwareTarget
    candidate: Candidate


def export_cuda(
    workloads: Sequence[AttentionWorkload],
    targets: Sequence[str],
    folder: Path | str,
    progress: Callable[[str], None] | None = None,
) -> tuple[ExportedCode, ...]:
    """Write a kernel of every workload for every target ("cuda-sm_87") into ``folder``/cuda: NAME.cubin,
    NAME.ptx (which newer GPUs run, too), NAME.cu, and manifest.json, which says how each is launched; and
    the C sources that launch them (tvm_attention_cuda.h). NAME_plain is the same without vectors, for
    strides and addresses that suit none.

    Needs no GPU. Raises InvalidValueError or UnsupportedError for what cannot be exported,
    KernelBuildError where something cannot be built, a compiler is missing for instance.
    """
    if not workloads or not targets:
        raise InvalidValueError("export: expected at least one workload and one target, got none")
    hardware = [named_target(name) for name in dict.fromkeys(targets)]
    chosen = compiler()  # before anything takes time
    own = Path(folder, FOLDER)
    own.mkdir(parents=True, exist_ok=True)
    written: list[ExportedCode] = []
    entries: list[dict[str, Any]] = []
    called: list[Exported] = []
    for number, (workload, target) in enumerate(product(workloads, hardware)):
        source = select(workload, target)
        if progress is not None:
            progress(f"{target.name}: {source}")
        plain = without_vectors(source.candidate)
        for candidate, ending in {source.candidate: "", plain: "_plain"}.items():
            name = f"attention{number}_{target.arch}{ending}"
            code = device_code(workload, target, candidate)
            made = _write_kernel(own / name, workload, target, code, chosen)
            kernel = ExportedCode(name, workload, target, candidate)
            written.append(kernel)
            called.append((name, workload, target, candidate, code))
            entries.append(_entry(kernel, code, made))
    manifest = {
        "schema": _SCHEMA,
        "library": "tvm_attention",
        "version": version("tvm-attention"),
        "compiler": chosen.name,
        "kernels": entries,
    }
    (own / MANIFEST).write_text(json.dumps(manifest, indent=1) + "\n", encoding="utf-8")
    _write_c(own, called)
    return tuple(written)


def _write_kernel(
    path: Path,
    workload: AttentionWorkload,
    target: HardwareTarget,
    code: DeviceCode,
    made_by: Compiler,
) -> MachineCode:
    """A kernel's files; of one with lengths, with what C programs have those filled in by."""
    text = whole_source(code)
    if workload.ragged:
        text += files("tvm_attention.cuda").joinpath("lengths.cuh").read_text("utf-8")
    made = made_by.machine_code(text, target.arch)
    path.with_suffix(".cu").write_text(text, encoding="utf-8")
    path.with_suffix(".cubin").write_bytes(made.cubin)
    ptx = made.ptx or made_by.ptx(text, target.arch)
    path.with_suffix(".ptx").write_text(ptx, encoding="utf-8")
    return made


def _write_c(folder: Path, kernels: Sequence[Exported]) -> None:
    """The sources of the C entry points, and the table of the kernels that they serve."""
    runtime = files("tvm_attention.cuda") / "runtime"
    shared = files("tvm_attention.export") / "runtime" / "tvm_attention.h"
    for source in (*runtime.iterdir(), shared):
        (folder / source.name).write_text(source.read_text("utf-8"), encoding="utf-8")
    table = table_source(kernels)
    (folder / "tvm_attention_cuda_kernels.c").write_text(table, encoding="utf-8")


def _entry(kernel: ExportedCode, code: DeviceCode, made: MachineCode) -> dict[str, Any]:
    """A kernel in the manifest: functions in the order of their launches, each on a grid of ``blocks``
    (one axis) and with dynamic shared memory. Formulas use the names of parameters, + - * // and
    parentheses."""
    formulas = grid_formulas(kernel.workload, kernel.candidate)
    kinds = parameter_kinds(kernel.workload)
    return {
        "name": kernel.name,
        "target": kernel.target.name,
        "workload": kernel.workload.to_dict(),
        "variant": kernel.candidate.variant,
        "decisions": dict(kernel.candidate.decisions),
        "aligned_elements": kernel.candidate["vector"],
        "workspace": {"parameter": WORKSPACE, "floats": formulas.workspace},
        "most_splits": formulas.most_splits,
        "functions": [
            {
                "name": f.name,
                "blocks": blocks,
                "threads": list(f.threads),
                "shared_bytes": f.shared_bytes,
                "registers": made.resources[f.name].registers,
                "parameters": [{"name": n, "type": kinds[n]} for n in f.parameters],
            }
            for f, blocks in zip(code.functions, formulas.blocks, strict=True)
        ],
    }
