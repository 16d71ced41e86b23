"""What an archive says of itself: one JSON file beside the libraries of an architecture."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path

from tvm_attention.export.archive.files import LIBRARY, SCHEMA
from tvm_attention.export.archive.interface import ABI
from tvm_attention.export.chosen import ExportedKernel


def manifest(
    architecture: str, kernels: Sequence[ExportedKernel], files: Mapping[str, Path]
) -> dict[str, object]:
    """The manifest of an architecture; ``files`` are its libraries by kind ("shared", "static")."""
    return {
        "schema": SCHEMA,
        "library": LIBRARY,
        "version": version("tvm-attention"),
        "tvm": version("apache-tvm"),
        "abi": ABI,
        "architecture": architecture,
        "files": {kind: _file(path) for kind, path in files.items()},
        "kernels": [_kernel(kernel) for kernel in kernels],
    }


def _file(path: Path) -> dict[str, object]:
    content = path.read_bytes()
    return {
        "name": path.name,
        "bytes": len(content),
        "sha256": hashlib.sha256(content).hexdigest(),
    }


def _kernel(kernel: ExportedKernel) -> dict[str, object]:
    source = kernel.source
    return {
        "name": kernel.name,
        "target": kernel.target.name,
        "features": sorted(kernel.target.features),
        "workload": kernel.workload.to_dict(),
        "length_class": kernel.workload.length_class,
        "schedule": source.kind,
        "rung": source.rung,
        "variant": source.candidate.variant,
        "decisions": dict(source.candidate.decisions),
    }
