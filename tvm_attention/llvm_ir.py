"""LLVM IR texts compiled into the process by TVM itself: no other compiler is needed."""

from __future__ import annotations

import ctypes
import tempfile
from pathlib import Path

from tvm_attention._tvm import load_tvm_libraries
from tvm_attention.errors import KernelBuildError


def load_interface(name: str, source: str) -> int:
    """Compile an LLVM IR text without header, in some 30 ms, and call its function ``interface``,
    which gives an address. The code stays until the process ends.

    Raises KernelBuildError, naming ``name``, if TVM cannot compile it.
    """
    tvm_ffi = load_tvm_libraries()
    try:
        # An empty module of TVM's has the data layout, triple and target its JIT insists on.
        empty = tvm_ffi.get_global_func("codegen.LLVMModuleCreate")('{"kind": "llvm"}', name)
        header = tvm_ffi.get_global_func("ffi.ModuleInspectSource")(empty, "ll")
        with tempfile.TemporaryDirectory(prefix="tvm_attention") as folder:
            path = Path(folder, "module.ll")
            path.write_text(header + source)
            module = tvm_ffi.load_module(str(path))
        interface: int = module["interface"]()
    except (AttributeError, RuntimeError, ValueError, OSError) as error:
        raise KernelBuildError(
            f"TVM could not compile the {name}: {error}; "
            f"check that apache-tvm is installed whole (with libtvm_compiler.so)"
        ) from error
    # Threads may be in this code whenever it would be unloaded.
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(module))
    return interface
