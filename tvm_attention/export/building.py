"""Building an archive: kernels and runtime to libraries, with all that a C project needs beside them."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from importlib.resources import as_file, files
from pathlib import Path

from tvm_attention.export.chosen import ExportedKernel, chosen_kernels
from tvm_attention.export.linking import COMPILE, WASM, linked
from tvm_attention.export.manifest import manifest
from tvm_attention.export.objects import write_object
from tvm_attention.export.table import table_source
from tvm_attention.export.toolchain import Toolchain, find_toolchain
from tvm_attention.workload import AttentionWorkload

MANIFEST, HEADER, LOADER = "manifest.json", "tvm_attention.h", "tvm_attention_archive"


@dataclass(frozen=True, slots=True)
class Exported:
    """What was written for one architecture."""

    architecture: str
    folder: Path
    kernels: tuple[ExportedKernel, ...]
    files: Mapping[str, Path]  # "shared" and "static", or "module"


def export(
    workloads: Sequence[AttentionWorkload],
    targets: Sequence[str],
    folder: Path | str,
    *,
    compilers: Mapping[str, str] | None = None,
    progress: Callable[[str], None] | None = None,
) -> tuple[Exported, ...]:
    """Write libraries with a kernel of every workload for every target (a level, a micro-architecture or
    "native"), one folder an architecture, and the files by which C, CMake, Python and JavaScript use them.

    ``compilers`` names C compilers by architecture ("x86_64", "aarch64", "riscv64", "wasm32"); ``progress``
    hears of each kernel.
    Raises InvalidValueError or UnsupportedError for what cannot be exported, KernelBuildError where
    something cannot be built, a compiler is missing for instance.
    """
    chosen = chosen_kernels(workloads, targets)
    toolchains = {a: find_toolchain(a, compilers) for a in chosen}  # before anything takes time
    return export_kernels(chosen, toolchains, Path(folder), progress)


def export_kernels(
    chosen: Mapping[str, Sequence[ExportedKernel]],
    toolchains: Mapping[str, Toolchain],
    folder: Path,
    progress: Callable[[str], None] | None = None,
) -> tuple[Exported, ...]:
    """The same for kernels that have been chosen, by architecture."""
    results = []
    for architecture, kernels in chosen.items():
        with tempfile.TemporaryDirectory(prefix="tvm_attention") as name:
            built = _libraries(toolchains[architecture], kernels, Path(name), progress)
            own = folder / architecture
            own.mkdir(parents=True, exist_ok=True)
            placed = {
                kind: Path(shutil.copy(path, own / path.name)) for kind, path in built.items()
            }
        text = json.dumps(manifest(architecture, kernels, placed), indent=1)
        (own / MANIFEST).write_text(text + "\n")
        if architecture == WASM:
            _package_file("tvm_attention.mjs", own)
        else:
            _package_file("tvm_attention.pc", own / "pkgconfig")
        results.append(Exported(architecture, own, tuple(kernels), placed))
    _package_file("tvm_attention-config.cmake", folder / "cmake")
    _copy(f"runtime/{HEADER}", folder / "include" / HEADER)
    loader = files("tvm_attention.export") / "archive"
    for source in sorted(f.name for f in loader.iterdir() if f.name.endswith(".py")):
        _copy(f"archive/{source}", folder / "python" / LOADER / source)
    return tuple(results)


def _libraries(
    tools: Toolchain,
    kernels: Sequence[ExportedKernel],
    work: Path,
    progress: Callable[[str], None] | None,
) -> dict[str, Path]:
    objects = []
    for kernel in kernels:
        if progress is not None:
            progress(f"{kernel.target.name}: {kernel.source}")
        objects.append(work / f"{kernel.name}.o")
        write_object(kernel, objects[-1])
    table = work / "kernels.c"
    table.write_text(table_source(kernels, version("tvm-attention"), tools.architecture))
    with as_file(files("tvm_attention.export") / "runtime") as runtime:
        for source in (table, *sorted(runtime.glob("*.c"))):
            objects.append(work / f"runtime_{source.stem}.o")
            tools.compile(source, objects[-1], f"-I{runtime}", *COMPILE)
        return linked(tools, objects, runtime / HEADER, work)


def _package_file(name: str, folder: Path) -> None:
    text = (files("tvm_attention.export") / "packaging" / name).read_text()
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(text.replace("@VERSION@", version("tvm-attention")))


def _copy(name: str, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text((files("tvm_attention.export") / name).read_text())
