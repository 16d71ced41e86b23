"""What a child process of tuning may take of the machine, which is to stay usable."""

from __future__ import annotations

import os
import resource
from pathlib import Path

import psutil

BUILDER_NICENESS = 5  # of builds; what is timed is not made to wait for others
_BUILDERS_SHARE, _RUNNER_SHARE = 0.5, 0.9
_LEAST_OF_A_BUILDER = 1 << 30  # an ordinary build takes a third of it


def builder_bytes(builders: int) -> int:
    """Memory that each of that many builders may take beyond what it starts with."""
    return max(_LEAST_OF_A_BUILDER, int(_free() * _BUILDERS_SHARE) // builders)


def runner_bytes() -> int:
    """The same of the process that measures: it holds a workload's arrays."""
    return int(_free() * _RUNNER_SHARE)


def restrict(more_bytes: int, niceness: int) -> None:
    """Of the calling process from here on: at most that much more memory, a lower priority, and no core
    dumps when a candidate crashes."""
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    used = int(status["VmData"].split()[0]) * 1024
    _lower(resource.RLIMIT_DATA, used + more_bytes)
    _lower(resource.RLIMIT_CORE, 0)
    os.nice(niceness)


def _lower(kind: int, limit: int) -> None:
    soft, hard = resource.getrlimit(kind)
    if soft == resource.RLIM_INFINITY or limit < soft:
        resource.setrlimit(kind, (limit, hard))


def _free() -> int:
    return int(psutil.virtual_memory().available)
