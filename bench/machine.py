"""A description of the machine, the library and the packages a result was measured with."""

from __future__ import annotations

import datetime
import os
import platform
import subprocess
from importlib import metadata
from pathlib import Path
from typing import Any

from tvm_attention.target import detect_target

PACKAGES = (
    "apache-tvm",
    "apache-tvm-ffi",
    "numpy",
    "onnxruntime",
    "openvino",
    "torch",
    "transformers",
    "tvm-attention",
)
# Settings of the thread pools and BLAS libraries that change what is measured.
VARIABLES = ("OMP_", "GOMP_", "KMP_", "MKL_", "OPENBLAS_", "TVM_", "ORT_", "OV_")


def machine() -> dict[str, Any]:
    """Processor, caches in bytes, memory in bytes, system, and settings that matter."""
    target = detect_target()
    return {
        **target.facts(),
        "target": target.name,
        "features": sorted(target.features),
        "memory": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "system": f"{platform.system()} {platform.release()}",
        "load_average": os.getloadavg()[0],
        "environment": {k: v for k, v in sorted(os.environ.items()) if _tells(k)},
    }


def circumstances(threads: int) -> dict[str, Any]:
    """What every result says of how it came about."""
    return {
        "machine": machine(),
        "packages": packages(),
        "library": library(),
        "threads": threads,
        "date": datetime.date.today().isoformat(),
    }


def _tells(variable: str) -> bool:
    """Whether a setting changes what is measured: folders do not."""
    return variable.startswith(VARIABLES) and not variable.endswith(("_DIR", "_ARCHIVE"))


def packages() -> dict[str, str]:
    """Versions of Python and of the packages that are installed."""
    found = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def library() -> dict[str, Any]:
    """The commit of the source tree, and whether it had changes; "unknown" outside a checkout."""
    root = Path(__file__).resolve().parent.parent
    commit, status = _git(root, "rev-parse", "HEAD"), _git(root, "status", "--porcelain")
    return {"commit": commit or "unknown", "changed": bool(status)}


def _git(root: Path, *arguments: str) -> str | None:
    command = ["git", "-C", str(root), *arguments]
    try:
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None
