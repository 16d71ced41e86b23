"""Built kernels on disk: written atomically, shared by processes, bounded in size."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock, Timeout

from tvm_attention import environment

_SUFFIX = ".ll"
_UNFINISHED = "write-"  # begins the name of a file that is being written
_ABANDONED = 3600.0  # seconds after which its writer must have died


@dataclass(frozen=True, slots=True)
class CacheUse:
    """How much of the cache is in use; sizes in bytes."""

    directory: Path
    kernels: int
    size: int
    limit: int


def read(key: str) -> str | None:
    """The stored source of a key, or None. Marks it as used.

    Raises InvalidValueError for a bad TVM_ATTENTION_CACHE_LIMIT_MB: here, and not first when the
    kernel that is built for want of a stored one is to be kept.
    """
    environment.cache_limit()
    path = _path(key)
    try:
        source = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return None
    with suppress(OSError):  # one that may only be read serves as well
        os.utime(path)
    return source


def write(key: str, source: str) -> None:
    """Store a source; the least recently used ones make room.

    A cache that cannot be written (a read-only home, a full disk) costs the next process a build, not
    this call an error.
    """
    directory = environment.cache_directory()
    with suppress(OSError, Timeout):
        directory.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=directory, prefix=_UNFINISHED)
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                file.write(source)
            os.replace(temporary, _path(key))
        except BaseException:
            with suppress(OSError):
                os.unlink(temporary)
            raise
        _make_room(directory)


def remove(key: str) -> None:
    """Forget a key."""
    with suppress(OSError):
        _path(key).unlink()


def clear() -> int:
    """Delete every kernel; returns how many."""
    files = _files(environment.cache_directory())
    for path in files:
        with suppress(OSError):
            path.unlink()
    return len(files)


def use() -> CacheUse:
    """What the cache holds now."""
    directory = environment.cache_directory()
    sizes = [size for _, size, _ in _by_age(directory)]
    return CacheUse(directory, len(sizes), sum(sizes), environment.cache_limit())


@contextmanager
def readable_file(source: str) -> Iterator[Path]:
    """A file of one's own with the source in it: another process may prune the cache meanwhile."""
    with tempfile.TemporaryDirectory(prefix="tvm_attention") as directory:
        path = Path(directory, "kernel.ll")
        path.write_text(source, encoding="utf-8")
        yield path


def _path(key: str) -> Path:
    return environment.cache_directory() / f"{key}{_SUFFIX}"


def _files(directory: Path) -> list[Path]:
    return list(directory.glob(f"*{_SUFFIX}")) if directory.is_dir() else []


def _by_age(directory: Path) -> list[tuple[float, int, Path]]:
    """(time last used, bytes, path), the oldest first."""
    entries = []
    for path in _files(directory):
        with suppress(OSError):
            status = path.stat()
            entries.append((status.st_mtime, status.st_size, path))
    return sorted(entries)


def _make_room(directory: Path) -> None:
    limit = environment.cache_limit()
    with FileLock(directory / "prune.lock", timeout=1):
        for path in directory.glob(f"{_UNFINISHED}*"):
            with suppress(OSError):
                if time.time() - path.stat().st_mtime > _ABANDONED:
                    path.unlink()
        entries = _by_age(directory)
        size = sum(s for _, s, _ in entries)
        for _, bytes_, path in entries:
            if size <= limit:
                break
            with suppress(OSError):
                path.unlink()
            size -= bytes_
