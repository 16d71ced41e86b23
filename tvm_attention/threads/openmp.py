"""The OpenMP library that is already loaded in this process."""

from __future__ import annotations

import ctypes
import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path, PurePath

# GNU's, Intel's and LLVM's library; wheels bundle copies with names like libgomp-a34b3233.so.1.0.0.
_OPENMP = re.compile(r"lib(gomp|iomp5|omp)([-.].*)?\.so(\..*)?")
_TORCH = re.compile(r"libtorch_cpu\.so")


@dataclass(frozen=True, slots=True)
class OpenMP:
    """One loaded OpenMP library: its path, the addresses of its functions GOMP_parallel (LLVM's and
    Intel's libraries have it too) and omp_get_max_threads, and the latter as a Python callable."""

    path: str
    parallel: int
    max_threads: int
    count: Callable[[], int]


def find_openmp() -> OpenMP | None:
    """The OpenMP library this process computes with, torch's first; None if none is loaded."""
    mapped = _mapped_files()
    # The dynamic linker looks in the global scope first: a preloaded OpenMP library is there, and
    # so is, by torch's own doing, the one torch uses. Else torch's dependencies name it.
    candidates: list[str | None] = [None]
    for pattern in (_TORCH, _OPENMP):
        candidates += sorted({m.path for m in mapped if pattern.fullmatch(PurePath(m.path).name)})
    return next(filter(None, (_functions(path, mapped) for path in candidates)), None)


def libgomp_paths() -> frozenset[str]:
    """Paths of the copies of GNU's OpenMP library loaded in this process."""
    names = ((m.path, PurePath(m.path).name) for m in _mapped_files())
    return frozenset(
        path for path, name in names if _OPENMP.fullmatch(name) and name.startswith("libgomp")
    )


@dataclass(frozen=True, slots=True)
class _Mapping:
    start: int
    end: int
    path: str


def _mapped_files() -> list[_Mapping]:
    """The code mapped from files into this process; empty where the system does not say."""
    try:
        lines = Path("/proc/self/maps").read_text(errors="surrogateescape").splitlines()
    except OSError:
        return []
    found = []
    for line in lines:
        # 7f01c0000000-7f01c0021000 r-xp 00000000 08:01 1234   /usr/lib/libgomp.so.1
        span, access, *_, path = line.split(maxsplit=5)
        if "x" in access and path.startswith("/"):
            start, end = (int(x, 16) for x in span.split("-"))
            found.append(_Mapping(start, end, path))
    return found


def _functions(path: str | None, mapped: list[_Mapping]) -> OpenMP | None:
    """The OpenMP functions a loaded library (None: the global scope) or what it needs defines."""
    try:
        library = ctypes.CDLL(path, mode=os.RTLD_NOLOAD | os.RTLD_LAZY)
        parallel, max_threads = library.GOMP_parallel, library.omp_get_max_threads
    except (OSError, AttributeError):
        return None
    address = _address(parallel)
    owner = next((m.path for m in mapped if m.start <= address < m.end), path or "global scope")
    max_threads.argtypes = ()
    return OpenMP(owner, address, _address(max_threads), max_threads)


def _address(function: object) -> int:
    return ctypes.cast(function, ctypes.c_void_p).value or 0  # type: ignore[arg-type]
