"""Built kernels on disk: written atomically, checked when read, shared by processes, bounded in size."""

from __future__ import annotations

import hashlib
import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock, Timeout

from tvm_attention import environment
from tvm_attention.errors import KernelBuildError

_SUFFIX = ".ll"
_UNFINISHED = "write-"  # begins the name of a file that is being written
_ABANDONED = 3600.0  # seconds after which its writer must have died
_SEAL = "\n; digest "  # begins a file's last line: a comment in LLVM IR


@dataclass(frozen=True, slots=True)
class CacheUse:
    """How much of the cache is in use; sizes in bytes."""

    directory: Path
    kernels: int
    size: int
    limit: int


def read(key: str) -> str | None:
    """The stored source of a key, or None, also for a file that is not what was written. Marks it as
    used.

    Raises InvalidValueError for a bad TVM_ATTENTION_CACHE_LIMIT_MB: here, and not first when the
    kernel that is built for want of a stored one is to be kept.
    """
    environment.cache_limit()
    path = _path(key)
    try:
        sealed = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return None
    source = sealed.rpartition(_SEAL)[0]
    if sealed != _sealed(source):  # a changed constant would load, and compute something else
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
                file.write(_sealed(source))
            os.replace(temporary, _path(key))
        except BaseException:
            with suppress(OSError):
                os.unlink(temporary)
            raise
        _make_room(directory)


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
    """A file of one's own with the source in it: another process may prune the cache meanwhile.

    Raises KernelBuildError where no temporary file can be written.
    """
    with ExitStack() as stack:
        try:
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="tvm_attention"))
            path = Path(folder, "kernel.ll")
            path.write_text(source, encoding="utf-8")
        except OSError as error:
            raise KernelBuildError(
                f"a kernel could not be loaded: it takes a temporary file of {len(source) >> 10} KiB: "
                f"{error}; make room, or set TMPDIR to a folder that can be written"
            ) from error
        yield path


def _sealed(source: str) -> str:
    """What a file holds: the source, and a digest of it as the last line."""
    digest = hashlib.blake2b(source.encode(), digest_size=16).hexdigest()
    return f"{source}{_SEAL}{digest}\n"


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
