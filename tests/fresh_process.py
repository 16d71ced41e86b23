"""Python code run in a process of its own, and what such code often begins with."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

GUARD = 300.0  # seconds: turns a hang into a failure

# A kernel that counts, launched once.
PRELUDE = """
import os, signal, sys, threading, time
from pathlib import Path
import numpy as np
from parallel_kernels import counting_kernel
from tvm_attention.threads import launcher

def run(times=100, length=64):
    counts, threads = np.zeros(length, "int32"), np.zeros(length, "int64")
    for _ in range(times):
        kernel(counts, threads, length)
    assert counts.tolist() == [times] * length
    return set(threads.tolist())

def workers():
    folder = Path("/proc/self/task")
    return [p.read_text().strip() for p in folder.glob("*/comm")].count("tvm_attention")

module = counting_kernel()
launcher().bind(module)
kernel = module["main"]
run()
"""


def run_script(*parts: str, **variables: str) -> str:
    """Runs Python code in a fresh process without torch imported, whose threads wait as a user's do; gives
    what it printed."""
    path = os.pathsep.join([str(Path(__file__).parent), *filter(None, sys.path)])
    environment = {n: x for n, x in os.environ.items() if n != "OMP_WAIT_POLICY"}
    done = subprocess.run(
        [sys.executable, "-c", "\n".join(parts)],
        env=environment | {"PYTHONPATH": path, **variables},
        capture_output=True,
        text=True,
        timeout=GUARD,
        check=False,
    )
    assert done.returncode == 0, f"{done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout
