"""The checks of ``doctor`` that could crash.

``python -m tvm_attention.commands.doctor_child NAME`` makes one and prints one line. The
exit status is 0 if the check held, 1 if it found something wrong.
"""

from __future__ import annotations

import importlib
import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tvm_attention import environment
from tvm_attention._tvm import import_tvm
from tvm_attention.commands.ending import FAILED, error_text
from tvm_attention.errors import AttentionError, KernelBuildError
from tvm_attention.workload import AttentionWorkload

_NAP_MICROSECONDS = 1000
_LAUNCHES = 20


def log_round_trip() -> str:
    """Writes TVM data as a log does and reads it back: a pair that does not fit crashes here."""
    tvm = import_tvm()
    value = int(tvm.ir.load_json(tvm.ir.save_json(tvm.tirx.IntImm("int32", 7))))
    if value != 7:
        raise KernelBuildError(f"a 7 that was written came back as {value}")
    return "what is written is read back"


def kernel() -> str:
    """Builds a small kernel from its default schedule, runs it and compares with float64."""
    from tvm_attention.accuracy import compare
    from tvm_attention.random_calls import random_inputs
    from tvm_attention.runtime import load

    library = Path(import_tvm().__file__ or "").parent / "lib" / "libtvm_compiler.so"
    if not library.is_file():
        raise KernelBuildError(
            f"expected TVM's compiler library {library.name}, got a runtime only"
        )
    workload = AttentionWorkload(head_dim=16, query_heads=2, query_length=9, key_length=21)
    with tempfile.TemporaryDirectory(prefix="tvm_attention") as folder:
        # Neither a kernel built before nor a tuning record: this is to show that it builds here.
        os.environ[environment.CACHE_DIR] = os.environ[environment.LOG_DIR] = folder
        loaded = load(workload)
        inputs = random_inputs(workload, seed=0)
        found = compare(loaded(*inputs), *inputs, workload)
    if not found.holds:
        raise KernelBuildError(f"a kernel is off by {found.max_error:.1e} ({loaded.source})")
    return f"a kernel builds and runs right (largest error {found.max_error:.1e})"


def threads() -> str:
    """Counts the threads that take part in a parallel loop."""
    from tvm_attention.threads import launcher

    pool = launcher()
    wanted = pool.max_threads()
    used = _threads_used(wanted)
    if wanted > 1 and used < 2:
        raise KernelBuildError(f"a loop of {wanted} threads on {pool.name} ran on one thread")
    return f"{wanted} on {pool.name}, of which {used} took part in a loop"


def torch_threads() -> str:
    """The same next to torch, whose pool kernels must then use."""
    from tvm_attention.threads import launcher
    from tvm_attention.threads.launching import OWN_POOL

    importlib.import_module("torch")
    if launcher().name == OWN_POOL:
        raise KernelBuildError("kernels do not find torch's thread pool and compete with it")
    return threads()


def xgboost() -> str:
    """Imports the search's cost model."""
    return f"xgboost {importlib.import_module('xgboost').__version__}"


def _threads_used(count: int) -> int:
    """Threads that ran tasks of one loop; tasks sleep, so that no thread can take them all."""
    import numpy as np

    from tvm_attention.threads import launcher

    module = _napping_module(4 * count)
    launcher().bind(module)
    import tvm_ffi

    seen = np.zeros(4 * count, np.int64)
    used = 0
    for _ in range(_LAUNCHES):  # on a busy machine a worker may wake too late for one loop
        module["main"](tvm_ffi.from_dlpack(seen))
        used = max(used, len(set(seen.tolist())))
        if used >= count:
            break
    return used


def _napping_module(tasks: int) -> Any:
    """A kernel ``main(out: int64 (tasks,))``: each task sleeps and stores its thread."""
    tvm = import_tvm()
    from tvm import te, tirx
    from tvm.s_tir import Schedule

    from tvm_attention.threads import BIND_FUNCTION, bind_function

    def task(index: Any) -> Any:
        nap = tirx.call_extern("int32", "usleep", tirx.const(_NAP_MICROSECONDS, "int32"))
        return tirx.call_extern("int64", "pthread_self") + nap.astype("int64")

    schedule = Schedule(te.create_prim_func([te.compute((tasks,), task, "tasks")]))
    schedule.parallel(schedule.get_loops(schedule.get_sblock("tasks"))[0])
    main = schedule.mod["main"].with_attr("global_symbol", "main")
    functions = tvm.IRModule({"main": main, BIND_FUNCTION: bind_function()})
    return tvm.compile(functions, tvm.target.Target({"kind": "llvm"})).mod


CHECKS: dict[str, Callable[[], str]] = {
    check.__name__: check for check in (log_round_trip, kernel, threads, torch_threads, xgboost)
}


def main(name: str) -> int:
    """Makes one check."""
    try:
        print(CHECKS[name]())
    except AttentionError as error:
        print(error_text(error))
        return FAILED
    except Exception as error:  # whatever is wrong with an installation is a finding
        print(" ".join(f"{type(error).__name__}: {error}".split()))
        return FAILED
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
