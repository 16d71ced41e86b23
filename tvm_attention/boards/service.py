"""What a board's RPC server does for tuning, in a process of its own for each session.

A session's process asks one of its own to measure: a candidate that crashes or hangs ends that, and the
session goes on.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
import threading
from multiprocessing import util
from pathlib import Path
from typing import Any

from tvm_attention._tvm import import_tvm
from tvm_attention.boards.description import describe_this_board
from tvm_attention.boards.requests import (
    DESCRIBE,
    LAUNCH,
    PERFORM,
    Request,
    answer_text,
)
from tvm_attention.processes import die_with_parent, process_pool
from tvm_attention.tuning.place import Outcome
from tvm_attention.tuning.workers import outcome_of

_runner: Any = None  # of this session


def register() -> None:
    """What TVM's RPC server calls in its process before it listens."""
    import_tvm()
    import tvm_ffi

    die_with_parent()
    os.register_at_fork(after_in_child=die_with_parent)
    # Sessions know what is registered here by being forked; Python 3.14 would start them otherwise.
    multiprocessing.set_start_method("fork", force=True)
    threading.excepthook = _end_with_the_listener
    tvm_ffi.register_global_func(DESCRIBE, _describe, override=True)
    tvm_ffi.register_global_func(PERFORM, _perform, override=True)


def _end_with_the_listener(arguments: threading.ExceptHookArgs) -> None:
    """TVM's server lives on deaf when a session's process dies: ``serve`` starts it again if it ends."""
    print(f"tvm-attention: a session failed: {arguments.exc_value}", file=sys.stderr, flush=True)
    os._exit(1)


def _describe() -> str:
    return describe_this_board().to_json()


def _perform(text: str) -> str:
    request = Request.from_json(text)
    folder = Path.cwd()  # where TVM's server puts what a session uploads
    libraries = [folder / name for name in request.libraries]
    try:
        return answer_text(_run(request, folder / LAUNCH, libraries))
    finally:
        for library in libraries:
            library.unlink(missing_ok=True)


def _run(request: Request, launch: Path, libraries: list[Path]) -> Outcome:
    global _runner
    from tvm_attention.boards import board_trials

    if _runner is None:
        _runner = process_pool(1, board_trials.start)
        # A process that was forked waits for its children when it ends, with this before that.
        util.Finalize(_runner, _end, (_runner,), exitpriority=1)
    arguments = (request, launch, libraries)
    return outcome_of(_runner.schedule(board_trials.perform, arguments, timeout=request.limit))


def _end(pool: Any) -> None:
    pool.stop()
    pool.join()
