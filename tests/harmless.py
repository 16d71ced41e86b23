"""What a program does while it reads files that it cannot trust, by the interpreter's own audit events."""

from __future__ import annotations

import codecs
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

MEMORY = 64 << 20  # bytes that a few hundred such files may take at the worst moment
# Evaluating, unpickling, other programs, other machines.
_NEVER = ("exec", "compile", "pickle.", "marshal.", "os.system", "os.exec", "os.fork", "os.posix_spawn",
          "os.spawn", "subprocess.", "socket.", "urllib.")  # fmt: skip
_CHANGES = ("os.remove", "os.rename", "os.mkdir", "os.rmdir", "os.link", "os.symlink", "os.truncate",
            "os.chmod", "os.chown", "os.utime", "shutil.", "ctypes.dlopen")  # fmt: skip
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND

for _name in ("utf-16", "utf-16-le", "utf-16-be", "utf-32", "utf-32-le", "utf-32-be"):
    codecs.lookup(_name)  # json imports what bytes seem to be encoded by

_folder: Path | None = None  # where changes are allowed, while events are looked at
_found: list[str] = []


def _hook(event: str, arguments: tuple[Any, ...]) -> None:
    if _folder is None:
        return
    if event == "open":
        path, _, flags = arguments
        if not isinstance(path, int) and flags & _WRITES and not _inside(path):
            _found.append(f"{event} {path}")
    elif event.startswith(_NEVER) or (event.startswith(_CHANGES) and not _inside(arguments[0])):
        _found.append(f"{event} {arguments}"[:300])


def _inside(path: Any) -> bool:
    assert _folder is not None
    return Path(os.path.realpath(os.fsdecode(path))).is_relative_to(_folder.resolve())


sys.addaudithook(_hook)  # for good: it can only be told to look away


@contextmanager
def nothing_but_reading(folder: Path) -> Iterator[None]:
    """Fails if something is evaluated, unpickled or started meanwhile, written outside of the folder, or
    much memory taken."""
    global _folder
    before = _peak_from_here()
    _found.clear()
    _folder = folder
    try:
        yield
    finally:
        _folder = None
    assert not _found, _found[:5]
    if before is not None:
        assert _status("VmHWM") - before < MEMORY


def _peak_from_here() -> int | None:
    """Bytes in memory, from which the peak counts now; None where Linux does not let itself be asked."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
        return _status("VmRSS")
    except (OSError, KeyError):
        return None


def _status(name: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(dict(line.split(":", 1) for line in lines)[name].split()[0]) * 1024
