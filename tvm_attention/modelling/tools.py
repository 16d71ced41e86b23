"""LLVM's programs that a model needs: llvm-mca and opt of version 19, which no Python package brings."""

from __future__ import annotations

import re
import shutil
import subprocess
from functools import lru_cache

from tvm_attention.errors import TuningError

VERSION = 19  # whose models of cores were checked: another version's are other models
SECONDS = 120


@lru_cache(maxsize=2)
def program(name: str) -> str:
    """The path of a program. Raises TuningError where it is not installed in this version."""
    for candidate in (f"{name}-{VERSION}", name):
        path = shutil.which(candidate)
        if path is not None and _version(path).startswith(f"{VERSION}."):
            return path
    raise TuningError(
        f"modelling needs {name} of LLVM {VERSION}, which is not installed; "
        f"`apt-get install llvm-{VERSION}` (Debian, Ubuntu) or LLVM {VERSION}'s release brings it"
    )


@lru_cache(maxsize=2)
def version(name: str) -> str:
    """The version of a program, as "19.1.7"."""
    return _version(program(name))


def run(name: str, *arguments: str, text: str) -> subprocess.CompletedProcess[str]:
    """The program's output for ``text`` on its standard input. Raises TuningError if it does not end."""
    command = [program(name), *arguments, "-"]
    try:
        return subprocess.run(
            command, input=text, capture_output=True, text=True, timeout=SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise TuningError(f"{name}: {type(error).__name__} after {SECONDS} s at most") from error


def _version(path: str) -> str:
    said = subprocess.run([path, "--version"], capture_output=True, text=True, check=False).stdout
    found = re.search(r"version (\d+\.[\d.]+\d)", said)
    return found[1] if found else ""
