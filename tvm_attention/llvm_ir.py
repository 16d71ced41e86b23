"""LLVM IR texts compiled by TVM itself, into the process or to object files: no other compiler is needed."""

from __future__ import annotations

import ctypes
import json
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tvm_attention._tvm import load_tvm_libraries
from tvm_attention.errors import KernelBuildError


def load_interface(name: str, source: str) -> int:
    """Compile an LLVM IR text without header, in some 30 ms, and call its function ``interface``,
    which gives an address. The code stays until the process ends.

    Raises KernelBuildError, naming ``name``, if TVM cannot compile it.
    """
    with _building(name):
        return _kept_interface(_compiled(name, source, {"kind": "llvm"}))


def load_interface_library(name: str, path: Path) -> int:
    """The same of a shared library that was linked from :func:`write_object`'s file: it needs no
    compiler. The file may be deleted afterwards."""
    with _building(name):
        return _kept_interface(load_tvm_libraries().load_module(str(path)))


def write_object(name: str, source: str, target: Mapping[str, Any], path: Path) -> None:
    """Compile an LLVM IR text without header to an object file of a target, as TVM describes it.

    Raises KernelBuildError, naming ``name``, if TVM cannot compile it.
    """
    with _building(name):
        _compiled(name, source, target).write_to_file(str(path), "o")


def _compiled(name: str, source: str, target: Mapping[str, Any]) -> Any:
    tvm_ffi = load_tvm_libraries()
    # An empty module of TVM's has the data layout, triple and target its JIT insists on.
    empty = tvm_ffi.get_global_func("codegen.LLVMModuleCreate")(json.dumps(target), name)
    header = tvm_ffi.get_global_func("ffi.ModuleInspectSource")(empty, "ll")
    with tempfile.TemporaryDirectory(prefix="tvm_attention") as folder:
        path = Path(folder, "module.ll")
        path.write_text(header + source)
        return tvm_ffi.load_module(str(path))


def _kept_interface(module: Any) -> int:
    interface: int = module["interface"]()
    # Threads may be in this code whenever it would be unloaded.
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(module))
    return interface


@contextmanager
def _building(name: str) -> Iterator[None]:
    try:
        yield
    except (AttributeError, RuntimeError, ValueError, OSError) as error:
        raise KernelBuildError(
            f"TVM could not compile the {name}: {error}; "
            f"check that apache-tvm is installed whole (with libtvm_compiler.so)"
        ) from error
