"""The process's launcher of parallel loops, and which thread pool it uses."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from pathlib import PurePath
from typing import Any

from tvm_attention import environment
from tvm_attention.errors import InvalidValueError, KernelBuildError
from tvm_attention.threads.binding import BIND_FUNCTION
from tvm_attention.threads.native import NativeLaunch, compile_launch
from tvm_attention.threads.openmp import OpenMP, find_openmp, libgomp_paths

OWN_POOL = "own pool"

_lock = threading.Lock()
_launcher: Launcher | None = None
_libgomp_before_fork: frozenset[str] = frozenset()


def launcher() -> Launcher:
    """The one Launcher of this process; the first call makes it.

    A call after torch has been imported moves all kernels bound so far to torch's OpenMP pool; it
    takes 0.03 us when nothing has changed. Raises UnsupportedError on another system than Linux on
    x86-64 or aarch64, KernelBuildError if TVM cannot compile here and InvalidValueError for a bad
    TVM_ATTENTION_NUM_THREADS.
    """
    current = _launcher
    if current is None or (not current.knows_torch and _torch_count() is not None):
        return _renewed_launcher()
    return current


def provide_launch(native: NativeLaunch) -> None:
    """Have :func:`launcher` use a launch function that was compiled elsewhere, where TVM cannot compile.
    Before the first kernel is loaded."""
    global _launcher
    with _lock:
        _launcher = Launcher(native)


class Launcher:
    """Runs the parallel loops of the kernels bound to it on one thread pool; see :func:`launcher`.

    ``name`` says where: "openmp: <library file>" or "own pool". ``max_threads()`` is the number of
    threads a loop started by the calling thread gets at most, at least 1. With OpenMP it is what
    ``torch.set_num_threads`` or OMP_NUM_THREADS say, bounded by TVM_ATTENTION_NUM_THREADS (read
    when the launcher is made) or :meth:`set_num_threads`. Our own pool uses just that bound, by
    default one thread for each core the process may run on. ``address`` is the launch function's,
    for callers that fill a kernel's slot themselves.
    """

    name: str
    max_threads: Callable[[], int]
    knows_torch: bool

    def __init__(self, native: NativeLaunch | None = None) -> None:
        self._limit = environment.num_threads()
        self._native = native or compile_launch()
        self.address, self.counted_address = self._native.address, self._native.counted
        self.choose_pool()

    def bind(self, module: Any, *, counted: bool = False) -> None:
        """Makes the parallel loops of a loaded kernel module run here, now and after any change of
        pool; ``counted``, by no more threads than a loop has iterations, where that number is a variable.
        Raises KernelBuildError if the module was built without :func:`bind_function`."""
        try:
            bind = module[BIND_FUNCTION]
        except AttributeError:
            raise KernelBuildError(
                f"expected a kernel module with a function {BIND_FUNCTION!r}, got one without; put "
                f"tvm_attention.threads.bind_function() into its IRModule"
            ) from None
        bind(self.counted_address if counted else self.address)

    def set_num_threads(self, count: int | None) -> None:
        """Sets the most threads a loop may use, for the whole process; None takes the bound away.
        Raises InvalidValueError for a number outside 1 to 4096."""
        if count is not None and not 1 <= count <= environment.MAX_THREADS:
            raise InvalidValueError(
                f"number of threads: expected 1 to {environment.MAX_THREADS} or None, got {count}"
            )
        with _lock:
            self._limit = count
            self.choose_pool()

    def choose_pool(self) -> None:
        """Looks anew for the thread pool to use."""
        torch_count = _torch_count()
        openmp = find_openmp()
        if openmp is None:
            threads = self._limit or len(os.sched_getaffinity(0))
            self._native.select(None, None, threads)
            self.name, self.max_threads = OWN_POOL, lambda: threads
        else:
            works = openmp.path not in _libgomp_before_fork
            parallel = openmp.parallel if works else None
            self._native.select(parallel, openmp.max_threads, self._limit or 0)
            self.name = f"openmp: {PurePath(openmp.path).name}" if works else OWN_POOL
            self.max_threads = _bounded(_counter(openmp, torch_count), self._limit)
        self.knows_torch = torch_count is not None

    def restart_in_child(self) -> None:
        """What a forked child must do first: the workers stayed with its parent."""
        self._native.forget_workers()
        self.choose_pool()


def _renewed_launcher() -> Launcher:
    global _launcher
    with _lock:
        if _launcher is None:
            _launcher = Launcher()
        else:
            _launcher.choose_pool()
        return _launcher


def _torch_count() -> Callable[[], int] | None:
    """torch.get_num_threads, once the process has imported torch that far."""
    return getattr(sys.modules.get("torch"), "get_num_threads", None)


def _counter(openmp: OpenMP, torch_count: Callable[[], int] | None) -> Callable[[], int]:
    """torch's own function if it asks the same library: it is cheaper, and it makes torch's setting
    known to the calling thread if that has not used OpenMP yet."""
    if torch_count is not None and torch_count() == openmp.count():
        return torch_count
    return openmp.count


def _bounded(count: Callable[[], int], limit: int | None) -> Callable[[], int]:
    return count if limit is None else lambda: min(count(), limit)


def _after_fork_in_child() -> None:
    """GNU's OpenMP library does not survive a fork: a child of a process that has used it waits for
    ever for workers that only the parent has. The child uses our own pool instead; Intel's and
    LLVM's libraries start afresh by themselves."""
    global _lock, _libgomp_before_fork
    _lock = threading.Lock()
    _libgomp_before_fork = libgomp_paths()
    if _launcher is not None:
        _launcher.restart_in_child()


os.register_at_fork(after_in_child=_after_fork_in_child)
