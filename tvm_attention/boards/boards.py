"""Boards as the place where tuning measures."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from concurrent.futures import TimeoutError as FutureTimeout
from contextlib import contextmanager
from typing import Any

from tvm_attention.boards import session_tasks
from tvm_attention.boards.address import Address, checked_key
from tvm_attention.boards.description import BoardDescription
from tvm_attention.boards.linking import launch_library
from tvm_attention.boards.session import CONNECT_SECONDS, UNREACHABLE, Where, require_alike
from tvm_attention.boards.tracker import NoBoardError, Tracker, greets_as_tracker
from tvm_attention.boards.workers import BoardWorkers
from tvm_attention.database import Provenance
from tvm_attention.errors import InvalidValueError
from tvm_attention.export.toolchain import Toolchain, find_toolchain
from tvm_attention.isa import MACHINES
from tvm_attention.memory_needed import require_memory
from tvm_attention.processes import process_pool
from tvm_attention.target import HardwareTarget, cut_down, named_target
from tvm_attention.tuning.place import Say
from tvm_attention.workload import AttentionWorkload

PATIENCE = 300.0  # seconds without any board that end a run
_DESCRIBE_SECONDS = session_tasks.QUEUE_SECONDS + CONNECT_SECONDS + 60.0


class Boards:
    """Machines that run ``tvm-attention serve``, for ``tune(..., on=Boards("laptop:9190", "pi4"))``.

    address: "HOST:PORT" of the tracker that they are registered with, or of one board. key: theirs; all
    boards of a key are alike. compilers: C compilers by architecture, to link by ("aarch64": "clang
    --target=..."). patience: seconds to wait when no board is left.

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
    ) -> None:
        self._address, self._key = Address.of(address), checked_key(key)
        self._compilers, self._patience = compilers, patience
        self._found: tuple[Where, BoardDescription, Toolchain] | None = None

    def hardware(self, target: str | HardwareTarget | None) -> HardwareTarget:
        """The boards' hardware, cut down to a target. Asks one of them. Raises TuningError where none
        answers or one is not fit, InvalidValueError for a target that it cannot run, KernelBuildError
        without a compiler to link by."""
        where = self.where()
        address, found, _ = described(where)
        require_alike(found, Address.of(address))
        toolchain = find_toolchain(MACHINES[found.hardware.kind][0], self._compilers)
        self._found = (where, found, toolchain)
        name = target.name if isinstance(target, HardwareTarget) else target
        return found.hardware if name is None else board_target(found, name, address)

    def where(self) -> Where:
        """The tracker or board, after it has answered."""
        where = Where(self._address, self._key, greets_as_tracker(self._address))
        if where.tracked:
            Tracker(self._address).require(self._key)
        return where

    def threads(self, hardware: HardwareTarget) -> int:
        return hardware.cores

    def require_memory(self, workload: AttentionWorkload) -> None:
        require_memory(workload, self._asked()[1].memory)

    def workers(self, hardware: HardwareTarget, say: Say) -> BoardWorkers:
        where, found, toolchain = self._asked()
        launch = launch_library(hardware, toolchain)
        return BoardWorkers(where, found.hardware, toolchain, launch, self._patience, say)

    def provenance(self, hardware: HardwareTarget, trials: int) -> Provenance:
        found = self._asked()[1]
        return Provenance(
            kind="measured",
            on=found.hardware.model or found.hardware.name,
            trials=trials,
            cpus=found.cpus,
            cores=found.cores,
        )

    def _asked(self) -> tuple[Where, BoardDescription, Toolchain]:
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


def board_target(found: BoardDescription, name: str, address: str) -> HardwareTarget:
    """A target on a board's cores and caches. Raises InvalidValueError for one that it cannot run."""
    named, board = named_target(name), found.hardware
    missing = sorted(named.features - board.features)
    if named.kind == board.kind and not missing:
        return cut_down(board, name)
    lacks = f"lacks {', '.join(missing)}" if named.kind == board.kind else f"is {board.kind}"
    raise InvalidValueError(
        f"target {named.name}: expected one that the board {address} can run, which is {board.name} and "
        f"{lacks}; leave the target out, or name another, such as {board.isa}"
    )
