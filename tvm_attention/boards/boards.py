"""Boards as the place where tuning measures."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import TimeoutError as FutureTimeout
from contextlib import contextmanager
from typing import Any

from tvm_attention.boards import session_tasks
from tvm_attention.boards.address import Address, checked_key
from tvm_attention.boards.description import BoardDescription
from tvm_attention.boards.parts import Part, gpu_part, is_for_gpu, processor_part
from tvm_attention.boards.session import CONNECT_SECONDS, UNREACHABLE, Where, require_alike
from tvm_attention.boards.tracker import NoBoardError, Tracker, greets_as_tracker
from tvm_attention.boards.workers import BoardWorkers
from tvm_attention.cuda.compilers import Compiler
from tvm_attention.cuda.compilers import compiler as this_compiler
from tvm_attention.database import Provenance
from tvm_attention.export.toolchain import find_toolchain
from tvm_attention.isa import MACHINES
from tvm_attention.memory_needed import require_memory
from tvm_attention.processes import process_pool
from tvm_attention.target import HardwareTarget
from tvm_attention.tuning.place import Say
from tvm_attention.workload import AttentionWorkload

PATIENCE = 300.0  # seconds without any board that end a run
_DESCRIBE_SECONDS = session_tasks.QUEUE_SECONDS + CONNECT_SECONDS + 60.0


class Boards:
    """Machines that run ``tvm-attention serve``, for ``tune(..., on=Boards("laptop:9190", "pi4"))``.

    address: "HOST:PORT" of the tracker that they are registered with, or of one board. key: theirs; all
    boards of a key are alike. compilers: C compilers by architecture, to link by ("aarch64": "clang
    --target=..."). patience: seconds to wait when no board is left. gpu_compiler: gives what compiles for
    the boards' GPUs, in the processes that build.

    What is wrong with an address or a key is an InvalidValueError; with what is found there, a TuningError
    of ``hardware``.
    """

    def __init__(
        self,
        address: str,
        key: str,
        *,
        compilers: Mapping[str, str] | None = None,
        patience: float = PATIENCE,
        gpu_compiler: Callable[[], Compiler] = this_compiler,
    ) -> None:
        self._address, self._key = Address.of(address), checked_key(key)
        self._compilers, self._patience = compilers, patience
        self._gpu_compiler = gpu_compiler
        self._found: tuple[Where, Part] | None = None

    def hardware(self, target: str | HardwareTarget | None) -> HardwareTarget:
        """The boards' processor, cut down to a target, or their GPU, for "cuda" and its name. Asks one of
        them. Raises TuningError where none answers or one is not fit, InvalidValueError for a target that it
        cannot run, KernelBuildError without a compiler: to link by, or NVIDIA's."""
        where = self.where()
        address, found, _ = described(where)
        require_alike(found, Address.of(address))
        name = target.name if isinstance(target, HardwareTarget) else target
        part = self.part(found, name, address)
        self._found = (where, part)
        return part.target

    def part(self, found: BoardDescription, name: str | None, address: str) -> Part:
        """The part of a board that a target's name means. Raises as :meth:`hardware` does."""
        if name is not None and is_for_gpu(name):
            return gpu_part(found, name, address, self._gpu_compiler)
        tools = find_toolchain(MACHINES[found.hardware.kind][0], self._compilers)
        return processor_part(found, name, address, tools)

    def where(self) -> Where:
        """The tracker or board, after it has answered."""
        where = Where(self._address, self._key, greets_as_tracker(self._address))
        if where.tracked:
            Tracker(self._address).require(self._key)
        return where

    def threads(self, hardware: HardwareTarget) -> int:
        return self._asked()[1].threads

    def require_memory(self, workload: AttentionWorkload) -> None:
        for free in self._asked()[1].memory:
            require_memory(workload, free)

    def workers(self, hardware: HardwareTarget, say: Say) -> BoardWorkers:
        return BoardWorkers(*self._asked(), self._patience, say)

    def provenance(self, hardware: HardwareTarget, trials: int) -> Provenance:
        part = self._asked()[1]
        on = part.hardware.model or part.hardware.name
        made = Provenance(kind="measured", on=on, trials=trials)
        if part.cores:
            made["cpus"], made["cores"] = part.cpus, part.cores
        return made

    def _asked(self) -> tuple[Where, Part]:
        if self._found is None:
            self.hardware(None)
        assert self._found is not None
        return self._found


def described(where: Where) -> tuple[str, BoardDescription, float]:
    """(address of a free board, what it says of itself, seconds of a round trip), asked by a child
    process. Raises TuningError where none answers in time."""
    with board_process() as process:
        return describe_in(process, where)


@contextmanager
def board_process() -> Iterator[Any]:
    """A pool of one child process, which can hold a board; leaving frees that."""
    pool = process_pool(1, session_tasks.start)
    try:
        yield pool
    finally:
        pool.stop()
        pool.join()


def describe_in(process: Any, where: Where) -> tuple[str, BoardDescription, float]:
    """The same by a given process, which holds the board from then on."""
    from pebble import ProcessExpired

    silent = f"boards with key {where.key!r} at {where.address}: expected one that answers"
    advice = "see that it is free and that this machine reaches its port"
    try:
        result: tuple[str, BoardDescription, float] = process.schedule(
            session_tasks.describe, (where,), timeout=_DESCRIBE_SECONDS
        ).result()
        return result
    except NoBoardError as error:
        raise NoBoardError(f"{silent}, got none: {error}; {advice}") from None
    except FutureTimeout:
        raise NoBoardError(f"{silent}, got one that hangs; {advice}") from None
    except ProcessExpired as expired:
        what = "none" if expired.exitcode == UNREACHABLE else f"exit code {expired.exitcode}"
        raise NoBoardError(f"{silent}, got {what}; {advice}") from None
