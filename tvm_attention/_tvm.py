"""Importing TVM without its side effects on the caller's process.

``import tvm_ffi`` imports torch wherever torch is installed, which costs a caller who passes NumPy
arrays about a second, and ``import tvm`` replaces ``sys.excepthook`` by one that ends the process's
multiprocessing children. Kernels take torch tensors just as well when torch is imported afterwards;
only TVM's own helpers for torch (tvm_ffi.use_torch_stream, torch dtypes as arguments) then lack it.
"""

from __future__ import annotations

import ctypes
import importlib.util
import os
import sys
import threading
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType

_lock = threading.RLock()


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
            return importlib.import_module(name)
        finally:
            sys.meta_path.remove(hider)
            sys.excepthook = hook
