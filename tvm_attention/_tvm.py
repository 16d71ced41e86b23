"""Importing TVM without its side effects on the caller's process.

``import tvm_ffi`` imports torch wherever torch is installed, which costs a caller who passes NumPy
arrays about a second; ``import tvm`` replaces ``sys.excepthook`` by one that ends the process's
multiprocessing children. Kernels take torch tensors just as well when torch is imported afterwards;
only TVM's own helpers for torch (tvm_ffi.use_torch_stream, torch dtypes as arguments) then lack it.
"""

from __future__ import annotations

import ctypes
import importlib.util
import os
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from importlib.machinery import ModuleSpec
from types import ModuleType

_lock = threading.RLock()
_LIBRARIES = ("runtime", "compiler")
_MOST_SIGACTION = 1024  # bytes; it has 152 on x86-64 and ARM with glibc


def import_tvm() -> ModuleType:
    """The ``tvm`` package, importing torch only if the process has imported it already."""
    return _import_without_torch("tvm")


def load_tvm_libraries() -> ModuleType:
    """The ``tvm_ffi`` package with TVM's runtime and compiler libraries loaded: enough to load and
    run kernels, in a quarter of the time ``import tvm`` takes (which may follow later)."""
    tvm_ffi = _import_without_torch("tvm_ffi")
    spec = importlib.util.find_spec("tvm")
    folders = (spec.submodule_search_locations if spec else None) or []
    try:
        # As tvm/base.py does: the runtime's symbols are for all, the compiler's for itself.
        ctypes.CDLL(os.path.join(folders[0], "lib", "libtvm_runtime.so"), mode=ctypes.RTLD_GLOBAL)
        ctypes.CDLL(os.path.join(folders[0], "lib", "libtvm_compiler.so"))
    except (IndexError, OSError):
        import_tvm()  # not laid out as in a wheel: TVM knows where, or says what is missing
    return tvm_ffi


@cache
def compiler_missing() -> str | None:
    """Why no kernel can be built in this process; None where one can, as far as files tell."""
    for package, module in (("apache-tvm", "tvm"), ("apache-tvm-ffi", "tvm_ffi")):
        if importlib.util.find_spec(module) is None:
            return f"package {package} is not installed"
    spec = importlib.util.find_spec("tvm")
    folders = (spec.submodule_search_locations if spec else None) or []
    for folder in (os.path.join(f, "lib") for f in folders):
        has = [os.path.isfile(os.path.join(folder, f"libtvm_{n}.so")) for n in _LIBRARIES]
        if has == [True, False]:
            return f"libtvm_compiler.so is not in {folder} (a runtime alone)"
    return None  # there, or not laid out as in a wheel


class _TorchHider:
    """A ``sys.meta_path`` entry that hides torch from the thread that made it; other threads may
    import torch meanwhile."""

    def __init__(self) -> None:
        self._thread = threading.get_ident()

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Raises ModuleNotFoundError for torch, knows nothing of other modules."""
        if name == "torch" and threading.get_ident() == self._thread:
            raise ModuleNotFoundError("torch is not imported on TVM's behalf", name=name)
        return None


def _import_without_torch(name: str) -> ModuleType:
    with _lock:
        hider = _TorchHider()
        hook = sys.excepthook
        sys.meta_path.insert(0, hider)
        try:
            with signals_left_alone():
                return importlib.import_module(name)
        finally:
            sys.meta_path.remove(hider)
            sys.excepthook = hook


@contextmanager
def signals_left_alone() -> Iterator[None]:
    """Puts back what SIGSEGV and SIGINT led to before, of which Python's signal module knows a part.

    tvm_ffi, when imported, takes SIGSEGV from faulthandler or a program's own handler. The solver that
    TVM asks when it schedules puts the handler of SIGINT back without its flags; from then on Ctrl-C
    would not end a read that waits.
    """
    before = {number: _action(number) for number in (signal.SIGSEGV, signal.SIGINT)}
    try:
        yield
    finally:
        for number, action in before.items():
            # Another handler of SIGINT is one that another thread has set meanwhile.
            if number == signal.SIGSEGV or _handler(_action(number)) == _handler(action):
                ctypes.CDLL(None).sigaction(number, action, None)


def _action(number: int) -> ctypes.Array[ctypes.c_char]:
    """The system's struct sigaction of a signal, as it is."""
    found = ctypes.create_string_buffer(_MOST_SIGACTION)
    ctypes.CDLL(None).sigaction(number, None, found)
    return found


def _handler(action: ctypes.Array[ctypes.c_char]) -> bytes:
    return action.raw[: ctypes.sizeof(ctypes.c_void_p)]  # its first field
