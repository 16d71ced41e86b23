"""A run in a process of its own: a kernel that goes astray or hangs takes that process, not the run."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from bench.gpu.journal import Journal

MOST_STARTS = 8
SILENCE = 90.0  # seconds without a line in the journal: it hangs
_STEP = 0.2


def supervise(
    command: Sequence[str], journal: Path, deadline: float, silence: float = SILENCE
) -> int:
    """Run a command until it succeeds, again after each crash, at most to the deadline (time.monotonic).

    The unit of work that a process was killed at is marked as failed. Returns how many processes it took;
    raises RuntimeError where they were too many.
    """
    book = Journal(journal)
    for start in range(1, MOST_STARTS + 1):
        reason = _watched(command, journal, deadline, silence)
        for part, name in book.crashed():
            book.write(part, name, "failed", {"error": f"the process ended: {reason}"})
        if reason == "" or time.monotonic() > deadline:
            return start
        print(f"process {start} ended: {reason}", file=sys.stderr)
    raise RuntimeError(f"expected at most {MOST_STARTS} processes to be needed, got no end")


def _watched(command: Sequence[str], journal: Path, deadline: float, silence: float) -> str:
    """Why a process ended, "" where it succeeded."""
    process = subprocess.Popen(command)
    heard, size = time.monotonic(), -1
    try:
        while process.poll() is None:
            now, found = time.monotonic(), journal.stat().st_size if journal.exists() else 0
            if found != size:
                heard, size = now, found
            if now - heard > silence:
                return f"nothing was done for {silence:g} s"
            if now > deadline:
                return "the time was up"
            time.sleep(_STEP)
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
    return "" if process.returncode == 0 else f"exit status {process.returncode}"
