"""What child processes of tuning do with boards: each holds a session from task to task."""

from __future__ import annotations

from collections.abc import Sequence

from tvm_attention._tvm import import_tvm
from tvm_attention.boards.description import BoardDescription
from tvm_attention.boards.requests import Request
from tvm_attention.boards.session import (
    BoardSession,
    OtherBoardError,
    Where,
    require_alike,
)
from tvm_attention.errors import TuningError
from tvm_attention.target import HardwareTarget
from tvm_attention.tuning.place import Outcome

QUEUE_SECONDS = 5.0  # for a board to become free; then the parent hears of it

_held: BoardSession | None = None


def start() -> None:
    """Before the first task."""
    import_tvm()


def describe(where: Where) -> tuple[str, BoardDescription, float]:
    """(address of a board, what it says of itself, seconds of a round trip). The board stays this
    process's, for :func:`perform`."""
    global _held
    _held = BoardSession(where, QUEUE_SECONDS)
    return str(_held.address), _held.description, _held.round_trip()


def perform(
    where: Where,
    expected: HardwareTarget,
    launch: bytes | None,
    request: Request,
    libraries: Sequence[bytes],
) -> Outcome:
    """The request's outcome on a board whose processor or GPU is ``expected``; the library ``launch`` runs
    parallel loops of a processor.

    Raises NoBoardError, OtherBoardError or, if the board was lost with the task, BoardLostError.
    """
    global _held
    try:
        if _held is None or _held.old:
            _held = None  # the board is free before another is asked for
            _held = BoardSession(where, QUEUE_SECONDS)
        _require_expected(_held, expected)
        if launch is not None:
            _held.provide(launch)
        return _held.perform(request, libraries)
    except TuningError:
        _held = None
        raise


def _require_expected(session: BoardSession, expected: HardwareTarget) -> None:
    try:
        require_alike(session.description, session.address)
    except TuningError as error:
        raise OtherBoardError(str(error)) from error
    found = session.description.part(expected.kind)
    if found is None:
        raise OtherBoardError(
            f"board {session.address} has no GPU: {session.description.gpu_problem}"
        )
    if found != expected:
        raise OtherBoardError(
            f"board {session.address} is {_named(found)}, not {_named(expected)}; give boards of another "
            f"kind a key of their own"
        )


def _named(hardware: HardwareTarget) -> str:
    return f"{hardware.model or 'a processor'} ({hardware.name}, {hardware.cores} cores)"
