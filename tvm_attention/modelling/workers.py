"""The child process that compiles what is modelled: a compiler that crashes or hangs costs a candidate
only."""

from __future__ import annotations

from concurrent.futures import TimeoutError as FutureTimeout
from types import TracebackType
from typing import Any

from tvm_attention.errors import AttentionError
from tvm_attention.modelling.code import Code, code_of
from tvm_attention.processes import process_pool
from tvm_attention.schedules import Candidate
from tvm_attention.target import HardwareTarget
from tvm_attention.tuning.trials import builder_start
from tvm_attention.workload import AttentionWorkload

COMPILE_SECONDS = 300.0  # an ordinary one takes one


class Compiler:
    """One child process at a time. Use as a context."""

    def __init__(self) -> None:
        self._pool = process_pool(1, builder_start(1))

    def __enter__(self) -> Compiler:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._pool.stop()
        self._pool.join()

    def code(
        self,
        workload: AttentionWorkload,
        target: HardwareTarget,
        candidate: Candidate,
        threads: int,
    ) -> tuple[Code | None, str]:
        """(code, "") or (None, why there is none)."""
        from pebble import ProcessExpired

        arguments = (workload, target, candidate, threads)
        future: Any = self._pool.schedule(code_of, arguments, timeout=COMPILE_SECONDS)
        try:
            return future.result(), ""
        except FutureTimeout:
            return None, "timed out"
        except ProcessExpired as expired:
            return None, f"crashed (exit code {expired.exitcode})"
        except AttentionError as error:
            return None, str(error)
        except Exception as error:
            return None, type(error).__name__
