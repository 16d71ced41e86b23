"""CUDA kernels run on the CPU, from the very source that is compiled for a GPU (on_cpu.h)."""

from __future__ import annotations

import ctypes
import re
import subprocess
import tempfile
from functools import lru_cache
from pathlib import Path
from typing import Any

from tvm_attention.device_code import DeviceCode, DeviceFunction

ORDERS = (0, 1, 2)  # of the threads between two barriers: ascending, descending, shuffled
_HEADER = Path(__file__).with_name("on_cpu.h")
_FAULTS = {
    1: "a barrier that not all threads of a block reach",
    2: "a write beyond the shared memory that was asked for",
}


@lru_cache(maxsize=None)
def compiled(source: str) -> ctypes.CDLL:
    """The source as a library with a function ``run_<kernel>`` for each of its kernels."""
    wrappers = []
    for name, parameters in re.findall(r"__launch_bounds__\(\d+\) (\w+)\(([^)]*)\) \{", source):
        types = [re.sub(r"(__restrict__)? *\w+$", "", p).strip() for p in parameters.split(",")]
        given = ", ".join(f"*({kind}*)arguments[{i}]" for i, kind in enumerate(types))
        wrappers.append(
            f"static void call_{name}(void** arguments) {{ {name}({given}); }}\n"
            f'extern "C" int run_{name}(void** a, int blocks, int x, int y, int shared, int order) '
            f"{{ return run_grid(call_{name}, a, blocks, x, y, shared, order); }}\n"
        )
    with tempfile.TemporaryDirectory() as folder:
        text, library = Path(folder, "kernel.cc"), Path(folder, "kernel.so")
        text.write_text(f'#include "{_HEADER}"\n{source}\n' + "".join(wrappers))
        flags = ["-std=c++17", "-O1", "-fno-inline", "-ftrivial-auto-var-init=pattern"]
        command = ["g++", "-w", *flags, "-shared", "-fPIC", "-o", str(library), str(text)]
        subprocess.run(command, check=True)
        return ctypes.CDLL(str(library))


def run(code: DeviceCode, function: DeviceFunction, blocks: int, arguments: Any, order: int) -> None:
    """Launch a kernel on ``arguments``, an array of pointers to its parameters."""
    x, y = function.threads
    call = getattr(compiled(code.source), f"run_{function.name}")
    fault = call(arguments, blocks, x, y, function.shared_bytes, order)
    assert fault == 0, f"{function.name}: {_FAULTS[fault]}"
