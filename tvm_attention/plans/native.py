"""The machine code of remembered calls: LLVM IR texts in this folder."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Callable
from functools import cache
from importlib.resources import files
from typing import Any

from tvm_attention.errors import KernelBuildError
from tvm_attention.llvm_ir import load_interface


def run_remembered() -> Callable[..., Any]:
    """``run(table.address, threads, workspace, its bytes, *arrays, out)`` as run.ll describes it: the
    result, or None where no plan of the table is for such arrays, threads and workspace, and where
    out shares memory with them.

    It does not look at the arrays' types, pending negations and gradients. Raises KernelBuildError.
    """
    return _compiled()[0]


def ndarray_description() -> int:
    """The address of a function that describes NumPy arrays. Raises KernelBuildError."""
    return _compiled()[1]


@cache
def _compiled() -> tuple[Callable[..., Any], int]:
    folder = files("tvm_attention.plans")
    parts = ("run", "compare", "ndarray")
    source = "\n".join(folder.joinpath(f"{part}.ll").read_text() for part in parts)
    _require_functions(source)
    interface = load_interface("entry of remembered calls", source)
    method, describe = (p or 0 for p in (ctypes.c_void_p * 2).from_address(interface))
    make = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)
    run: Callable[..., Any] = make(("PyCFunction_NewEx", ctypes.pythonapi))(method, None, None)
    return run, describe


def _require_functions(source: str) -> None:
    """Raises KernelBuildError if this Python lacks a function that the source calls: LLVM would load it
    all the same, and the process would end at the call."""
    called = set(re.findall(r"^declare .*@(_?Py\w+)", source, re.MULTILINE))
    missing = sorted(name for name in called if not hasattr(ctypes.pythonapi, name))
    if missing:
        raise KernelBuildError(f"this Python has no function {', '.join(missing)}")
