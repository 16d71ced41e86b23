"""A session with a board, held by a child process of tuning: what hangs here is ended with its process."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib.metadata import version
from typing import Any

import tvm_attention
from tvm_attention._tvm import import_tvm
from tvm_attention.boards.address import Address
from tvm_attention.boards.description import BoardDescription
from tvm_attention.boards.requests import (
    DESCRIBE,
    LAUNCH,
    PERFORM,
    Request,
    answer_of,
    library_name,
)
from tvm_attention.boards.tracker import Entry, NoBoardError, Tracker
from tvm_attention.digest import EXPRESSION_DIGEST
from tvm_attention.errors import TuningError
from tvm_attention.tuning.place import Outcome

CONNECT_SECONDS = 20
HELD_SECONDS = 600.0  # then another session is begun
# The board ends a session of this age: a laptop that vanished would hold it for ever. A task takes at
# most five minutes.
SESSION_SECONDS = 1200
UNREACHABLE = -signal.SIGALRM  # exit code of a process that connected in vain


class BoardLostError(TuningError):
    """A board was lost in the middle of a task."""


class OtherBoardError(TuningError):
    """A board is not like the one that tuning began with."""


@dataclass(frozen=True, slots=True)
class Where:
    """A tracker (``tracked``) or a board's own server, and the key of the boards."""

    address: Address
    key: str
    tracked: bool

    def board(self, seconds: float) -> Entry:
        """A board of one's own. Raises NoBoardError if none becomes free in that time."""
        if self.tracked:
            return Tracker(self.address).request(self.key, seconds)
        return Entry(self.address, self.key)


class BoardSession:
    """A session with a board of ``where``, until the object goes. Raises NoBoardError where none is free or
    answers, TuningError for one that is not of use."""

    def __init__(self, where: Where, seconds: float) -> None:
        import_tvm()
        from tvm import rpc

        entry = where.board(seconds)
        self.address = entry.address
        self._opened = time.monotonic()
        self._uploads, self._provided = 0, False
        host, port = entry.address.host, entry.address.port
        try:
            with _killed_after(CONNECT_SECONDS):
                self._session = rpc.connect(
                    host, port, entry.match_key, session_timeout=SESSION_SECONDS
                )
        except RuntimeError as error:
            if not where.tracked and "key" in str(error):
                raise TuningError(
                    f"key {where.key!r}: expected that of the board {self.address}, which refused it; see "
                    f"what `tvm-attention serve` said there"
                ) from error
            raise NoBoardError(f"board {self.address} does not answer: {_line(error)}") from error
        self.description = self._describe()

    @property
    def old(self) -> bool:
        return time.monotonic() - self._opened > HELD_SECONDS

    def round_trip(self) -> float:
        """Seconds that a question and its answer take, the fastest of five."""
        ask = self._session.get_function("tvm.rpc.server.workpath")
        times = []
        for _ in range(5):
            start = time.perf_counter()
            ask("")
            times.append(time.perf_counter() - start)
        return min(times)

    def provide(self, launch: bytes) -> None:
        """What runs kernels' parallel loops there, before any is performed. Once a session."""
        if not self._provided:
            self._upload(LAUNCH, launch)
            self._provided = True

    def perform(self, request: Request, libraries: Sequence[bytes]) -> Outcome:
        """What the board makes of a request; ``libraries`` are its kernels. Raises BoardLostError."""
        names = []
        for library in libraries:
            self._uploads += 1
            names.append(library_name(self._uploads))
            self._upload(names[-1], library)
        named = replace(request, libraries=tuple(names))
        with _lost(self.address):
            return answer_of(request.task, str(self._function(PERFORM)(named.to_json())))

    def _upload(self, name: str, data: bytes) -> None:
        with _lost(self.address):
            self._session.upload(bytearray(data), name)

    def _describe(self) -> BoardDescription:
        with _lost(self.address):
            text = str(self._function(DESCRIBE)())
        return BoardDescription.from_json(text)

    def _function(self, name: str) -> Any:
        try:
            return self._session.get_function(name)
        except AttributeError as error:
            raise TuningError(
                f"board {self.address}: expected a server with tvm-attention's functions, got TVM's own; "
                f"start `tvm-attention serve` there"
            ) from error


def require_alike(found: BoardDescription, address: Address) -> None:
    """Raises TuningError for a board that runs other versions than this machine."""
    here = {
        "apache-tvm": (version("apache-tvm"), found.tvm),
        "tvm-attention": (tvm_attention.__version__, found.library),
        "tvm-attention's expressions": (EXPRESSION_DIGEST, found.expression),
    }
    for name, (ours, theirs) in here.items():
        if ours != theirs:
            raise TuningError(
                f"board {address}: expected {name} {ours}, which this machine has, got {theirs}; install "
                f"the same on both"
            )


@contextmanager
def _killed_after(seconds: int) -> Iterator[None]:
    """Ends this process if a connection takes longer: TVM's has no limit and cannot be interrupted."""
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)


@contextmanager
def _lost(address: Address) -> Iterator[None]:
    try:
        yield
    except TuningError:
        raise
    except (RuntimeError, ValueError, OSError) as error:  # as TVM says that a connection broke
        raise BoardLostError(f"board {address} was lost: {_line(error)}") from error


def _line(error: BaseException) -> str:
    return " ".join(str(error).split())[:200]
