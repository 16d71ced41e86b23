"""The child process that compiles what is modelled: a compiler that crashes or hangs costs a candidate
only."""

from __future__ import annotations

from types import TracebackType

from tvm_attention.modelling.code import Code, code_of
from tvm_attention.processes import end, process_pool
from tvm_attention.schedules import Candidate
from tvm_attention.target import HardwareTarget
from tvm_attention.tuning.trials import builder_start
from tvm_attention.tuning.workers import outcome_of
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
        end(self._pool)

    def code(
        self,
        workload: AttentionWorkload,
        target: HardwareTarget,
        candidate: Candidate,
        threads: int,
    ) -> tuple[Code | None, str]:
        """(code, "") or (None, why there is none)."""
        arguments = (workload, target, candidate, threads)
        future = self._pool.schedule(code_of, arguments, timeout=COMPILE_SECONDS)
        return outcome_of(future, whole=True)
