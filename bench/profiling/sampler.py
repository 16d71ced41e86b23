"""Samples of where the process spends its time, by sampler.c, which is compiled as it is first used."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from tvm_attention.errors import UnsupportedError

EVERY = 1000  # microseconds of processor time: the kernel's own clock ticks no faster
_SOURCE = Path(__file__).with_name("sampler.c")


@dataclass(frozen=True, slots=True)
class Mapping:
    """A stretch of the process's executable memory; ``name`` is its file, empty for machine code that was
    made while the process ran."""

    start: int
    end: int
    name: str


def sampled(call: Callable[[], None], seconds: float) -> Counter[int]:
    """Addresses at which the threads of the process were, while ``call`` ran over and over, with how
    often. Raises UnsupportedError without a C compiler."""
    library = _library()
    library.sampler_start(EVERY)
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        call()
    found = ctypes.POINTER(ctypes.c_uint64)()
    count = library.sampler_stop(ctypes.byref(found))
    return Counter(found[:count])


def executable_memory() -> list[Mapping]:
    """From /proc/self/maps."""
    found = []
    for line in Path("/proc/self/maps").read_text(encoding="utf-8").splitlines():
        span, rights, _, _, _, *name = line.split(maxsplit=5)
        if "x" in rights:
            start, end = (int(x, 16) for x in span.split("-"))
            found.append(Mapping(start, end, name[0] if name else ""))
    return found


@cache
def _library() -> Any:
    compiler = shutil.which("cc")
    if compiler is None:
        raise UnsupportedError("the sampler is compiled: expected a C compiler named cc, got none")
    folder = tempfile.mkdtemp(prefix="tvm_attention_sampler")
    path = Path(folder) / "sampler.so"
    command = [compiler, "-O2", "-shared", "-fPIC", "-o", str(path), str(_SOURCE)]
    try:
        subprocess.run(command, check=True)
        library = ctypes.CDLL(str(path))
    finally:
        shutil.rmtree(folder)
    library.sampler_stop.restype = ctypes.c_int64
    return library
