"""A TVM kernel with a parallel loop, and launches of Python functions, for tests of threads."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

from tvm_attention._tvm import import_tvm
from tvm_attention.threads import BIND_FUNCTION, bind_function, launcher

_TASK = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)
_LAUNCH = ctypes.CFUNCTYPE(ctypes.c_int, _TASK, ctypes.c_void_p, ctypes.c_int)


class GroupEnvironment(ctypes.Structure):
    """TVMParallelGroupEnv: what a task is told about its launch."""

    _fields_ = (("sync_handle", ctypes.c_void_p), ("num_task", ctypes.c_int32))


def counting_kernel(*, bindable: bool = True) -> Any:
    """A module whose main(counts: int32[n], threads: int64[n], n) adds 1 to every count in a
    parallel loop and notes the thread that did; for a count below 0 it raises "negative count"."""
    tvm = import_tvm()
    from tvm.script import tirx as T

    @T.prim_func  # type: ignore[untyped-decorator]
    def main(counts_handle: T.handle, threads_handle: T.handle, n: T.int32) -> None:
        counts = T.match_buffer(counts_handle, (n,), "int32")
        threads = T.match_buffer(threads_handle, (n,), "int64")
        for i in T.parallel(n):
            assert counts[i] >= 0, "negative count"
            counts[i] = counts[i] + 1
            threads[i] = T.call_extern("int64", "pthread_self")

    functions = {"main": main.with_attr("global_symbol", "main")}
    if bindable:
        functions[BIND_FUNCTION] = bind_function()
    return tvm.compile(tvm.IRModule(functions), {"kind": "llvm"})


def launch(task: Callable[[int, int], int], asked: int = 0) -> int:
    """Launches task(number, tasks of the launch) as a kernel would; gives the launch's code."""

    def native(number: int, environment: int, closure: int | None) -> int:
        return task(number, GroupEnvironment.from_address(environment).num_task)

    return int(_LAUNCH(launcher().address)(_TASK(native), None, asked))
