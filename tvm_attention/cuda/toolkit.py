"""Where the parts of the CUDA toolkit are: installed by the system, or as packages of Python's."""

from __future__ import annotations

import importlib.util
import os
import shutil
from collections.abc import Iterator
from pathlib import Path


def package_folders() -> Iterator[Path]:
    """Folders of NVIDIA's Python packages that hold ``bin`` and ``lib``: one for all from CUDA 13 on
    (nvidia/cu13), one a package before (nvidia/cuda_nvrtc)."""
    found = importlib.util.find_spec("nvidia")
    for place in [] if found is None else list(found.submodule_search_locations or ()):
        yield from sorted((p for p in Path(place).iterdir() if p.is_dir()), reverse=True)


def toolkit_folders() -> Iterator[Path]:
    """Folders of whole toolkits: CUDA_HOME, CUDA_PATH, where installers put them."""
    for variable in ("CUDA_HOME", "CUDA_PATH"):
        if os.environ.get(variable):
            yield Path(os.environ[variable])
    yield Path("/usr/local/cuda")


def libraries(pattern: str) -> Iterator[Path]:
    """Shared libraries by a pattern of their names, the packages' first: they are what torch uses."""
    for folder in (*package_folders(), *toolkit_folders()):
        for lib in ("lib", "lib64"):
            yield from sorted((folder / lib).glob(pattern), key=lambda p: (len(p.name), p.name))


def nvcc() -> Path | None:
    """NVIDIA's compiler driver: on the path, else in a toolkit, else in a package."""
    on_path = shutil.which("nvcc")
    if on_path is not None:
        return Path(on_path)
    for folder in (*toolkit_folders(), *package_folders()):
        if os.access(folder / "bin" / "nvcc", os.X_OK):
            return folder / "bin" / "nvcc"
    return None
