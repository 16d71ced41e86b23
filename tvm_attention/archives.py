"""Exported archives that serve this process's calls: all there is on a device without TVM's compiler.

Needs NumPy and nothing else of what the package depends on.
"""

from __future__ import annotations

import os
import platform
import threading
from pathlib import Path

from tvm_attention import environment
from tvm_attention.archive_kernel import ArchiveKernel, example_problem
from tvm_attention.errors import InvalidTypeError, KernelBuildError
from tvm_attention.export.archive import Archive, ArchiveError
from tvm_attention.operands import check_threads
from tvm_attention.workload import AttentionWorkload
from tvm_attention.workload_text import written

_lock = threading.Lock()
_loaded: list[Archive] | None = None  # None until the environment was asked
_kernels: dict[tuple[object, ...], ArchiveKernel | None] = {}


def load_archive(folder: str | Path) -> Archive:
    """Let an archive that ``tvm-attention export`` wrote serve this process's calls, before all others.

    ``folder`` is the one that the export wrote, or that of this machine's architecture in it. From then on
    :func:`attention`, :func:`load`, the caches and all else that computes attention take the archive's
    kernels where it has one; the archive that was loaded last is asked first. What it lacks is built, if
    TVM's compiler is here. The environment variable TVM_ATTENTION_ARCHIVE names folders to load at the first
    call.

    Returns the archive; ``archive.kernels()`` lists what it has. Raises KernelBuildError for one that is
    missing, damaged or foreign, of another architecture or a newer format, with the reason.
    """
    archive = _opened(Path(folder))
    with _lock:
        _archives().insert(0, archive)
    _forget()
    return archive


def unload_archives() -> None:
    """Let no archive serve any more. Kernels that were loaded from one go on working."""
    global _loaded
    with _lock:
        _loaded = []
    _forget()


def kernel_for(workload: AttentionWorkload, num_threads: int | None) -> ArchiveKernel | None:
    """The kernel of the first archive that serves a workload; None if none does."""
    if not isinstance(workload, AttentionWorkload):
        raise InvalidTypeError(
            f"workload: expected an AttentionWorkload, got {type(workload).__name__}"
        )
    with _lock:
        if not _archives():  # nearly everywhere
            return None
    check_threads(num_threads)
    threads = num_threads or environment.num_threads() or len(os.sched_getaffinity(0))
    w = workload
    key = (w.head_dim, w.value_dim, w.dtype, w.causal, w.length_class, *w.kernel_features, threads)
    with _lock:
        if key not in _kernels:
            found = (_kernel(a, workload, threads) for a in _archives())
            _kernels[key] = next((kernel for kernel in found if kernel is not None), None)
        return _kernels[key]


def unserved(workload: AttentionWorkload, missing: str) -> str:
    """What to say, and to do, where no archive serves a workload and the compiler is ``missing``."""
    count = len(_loaded or ())
    has = "no archive is loaded" if not count else f"none of the {count} loaded archives has it"
    if count == 1:
        has = "the loaded archive has it not"
    return (
        f"kernel: {has}, and it cannot be built here: {missing}. On a machine with TVM's compiler run "
        f"`tvm-attention export --workload {written(workload)} --targets {_target_name()} -o DIR`, copy DIR "
        f"here and call tvm_attention.load_archive(DIR) or set {environment.ARCHIVE}=DIR"
    )


def _forget() -> None:
    """Choices made before, and calls that would be repeated as they ran then."""
    from tvm_attention.functional import forget_calls  # which comes here itself

    with _lock:
        _kernels.clear()
    forget_calls()


def _archives() -> list[Archive]:
    global _loaded
    if _loaded is None:
        _loaded = [_opened(folder) for folder in environment.archive_folders()]
    return _loaded


def _opened(folder: Path) -> Archive:
    try:
        return Archive.open(folder)
    except ArchiveError as error:
        raise KernelBuildError(f"archive {error}") from error


def _kernel(archive: Archive, workload: AttentionWorkload, threads: int) -> ArchiveKernel | None:
    try:
        prepared, _ = archive.prepare(example_problem(workload))
    except ArchiveError:
        return None
    return ArchiveKernel(archive, workload, archive.kernel_name(prepared), threads)


def _target_name() -> str:
    """The name of this machine's target; of its architecture where it cannot be told."""
    try:
        from tvm_attention.target import detect_target

        return detect_target().name
    except Exception:  # archspec is absent, or the processor unknown to it
        machine = platform.machine().lower()
        return {"x86_64": "x86-64-v3", "amd64": "x86-64-v3", "arm64": "aarch64"}.get(
            machine, machine
        )


def _after_fork_in_child() -> None:
    """A child has none of the threads that its parent's pools started."""
    global _lock
    _lock = threading.Lock()
    for archive in _loaded or ():
        archive.forget_threads()


os.register_at_fork(after_in_child=_after_fork_in_child)
