"""Candidates linked on this machine and measured on boards, as many side by side as there are."""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, wait
from concurrent.futures import TimeoutError as FutureTimeout
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Any

from tvm_attention.boards import session_tasks
from tvm_attention.boards.parts import Part
from tvm_attention.boards.requests import CONFIRM, MEASURE, Request
from tvm_attention.boards.session import (
    CONNECT_SECONDS,
    UNREACHABLE,
    BoardLostError,
    OtherBoardError,
    Where,
)
from tvm_attention.boards.tracker import NoBoardError, Tracker
from tvm_attention.errors import TuningError
from tvm_attention.processes import end, process_pool
from tvm_attention.processor import usable_cpus
from tvm_attention.schedules import Candidate
from tvm_attention.target import HardwareTarget
from tvm_attention.tuning import trials, workers
from tvm_attention.tuning.place import Measurement, Outcome, PlaceLostError, Say
from tvm_attention.tuning.workers import built_side_by_side, outcome_of
from tvm_attention.workload import AttentionWorkload

MOST_BOARDS = 8  # side by side: as many as candidates are proposed at a time
CHANCES = (
    2  # times that a board may be lost with a candidate: the second time the candidate is to blame
)
OVERHEAD = 90.0  # seconds beyond a task's own limit: to get a board, to upload, to answer
LOST = "board lost"
_STEP = 1.0  # seconds between looks at what waits
_PAUSE = 3.0  # seconds after a board that was of no use, before another is asked for


@dataclass(frozen=True, slots=True)
class _Task:
    number: int
    started: float

    @property
    def has_board(self) -> bool:
        """Whether it has been at it for longer than it takes to learn that there is no board."""
        return time.monotonic() - self.started > session_tasks.QUEUE_SECONDS + CONNECT_SECONDS


class BoardWorkers:
    """Boards of a tracker or one alone. Use as a context; ``say`` hears what is waited for."""

    def __init__(
        self,
        where: Where,
        part: Part,
        patience: float,
        say: Say,
    ) -> None:
        self._where, self._part, self._patience, self._say = where, part, patience, say
        builders = len(usable_cpus())
        self._builders = process_pool(builders, trials.builder_start(builders))
        self._width = self._boards_now()
        self._lanes = process_pool(self._width, session_tasks.start)

    def __enter__(self) -> BoardWorkers:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        end(self._builders, self._lanes)

    def build(
        self, arguments: Sequence[tuple[AttentionWorkload, HardwareTarget, Candidate]]
    ) -> list[Outcome]:
        """The bytes of each candidate's kernel."""
        return built_side_by_side(self._builders, self._part.build, arguments)

    def measure(
        self, tasks: Sequence[Measurement], best: Callable[[], float]
    ) -> Iterator[tuple[int, Outcome]]:
        """On whichever board is free; in no order. Raises PlaceLostError when none has answered for
        too long."""

        def request(number: int) -> tuple[Request, list[bytes]]:
            t = tasks[number]
            limit = workers.MEASURE_TIMEOUT
            asked = Request(MEASURE, (), t.workload, (t.candidate,), t.threads, limit, best())
            return asked, [t.built]

        yield from self._performed(len(tasks), request)

    def confirm(
        self,
        built: Sequence[Any],
        workload: AttentionWorkload,
        candidates: Sequence[Candidate],
        threads: int,
    ) -> Outcome:
        """All on the same board, in turns."""
        asked = Request(CONFIRM, (), workload, tuple(candidates), threads, workers.CONFIRM_TIMEOUT)
        done = self._performed(1, lambda _: (asked, list(built)))
        return next(outcome for _, outcome in done)

    def _performed(
        self, count: int, request: Callable[[int], tuple[Request, list[bytes]]]
    ) -> Iterator[tuple[int, Outcome]]:
        self._widen()
        waiting, running = deque(range(count)), dict[Any, _Task]()
        lost = Counter[int]()
        alive, pause = time.monotonic(), 0.0
        while waiting or running:
            while waiting and len(running) < self._width and time.monotonic() >= pause:
                number = waiting.popleft()
                running[self._scheduled(*request(number))] = _Task(number, time.monotonic())
            if not running:
                time.sleep(_STEP)
            done, _ = wait(running, timeout=_STEP, return_when=FIRST_COMPLETED)
            for future in done:
                number = running.pop(future).number
                failure = _failure_of_place(future)
                if failure is None or isinstance(failure, BoardLostError):
                    alive = time.monotonic()
                if failure is None:
                    self._say("")
                    outcome, bug = outcome_of(future)
                    yield number, outcome or (None, bug)
                    continue
                lost[number] += isinstance(failure, BoardLostError)
                if lost[number] >= CHANCES:
                    yield number, (None, LOST)
                    continue
                waiting.append(number)
                pause = time.monotonic() + _PAUSE
                if not any(task.has_board for task in running.values()):
                    self._wait(str(failure), alive)

    def _scheduled(self, request: Request, libraries: list[bytes]) -> Any:
        request = replace(request, on_gpu=self._part.on_gpu)
        arguments = (self._where, self._part.hardware, self._part.launch, request, libraries)
        limit = request.limit + OVERHEAD
        return self._lanes.schedule(session_tasks.perform, arguments, timeout=limit)

    def _wait(self, why: str, alive: float) -> None:
        """Says why nothing happens; raises PlaceLostError when that has lasted too long."""
        silent = time.monotonic() - alive
        if silent > self._patience:
            raise PlaceLostError(f"no board answered for {self._patience:.0f} s: {why}")
        self._say(f"{why}; waiting for a board, {self._patience - silent:.0f} s more")

    def _widen(self) -> None:
        """Boards that came since are made use of."""
        boards = self._boards_now()
        if boards > self._width:
            end(self._lanes)
            self._width = boards
            self._lanes = process_pool(boards, session_tasks.start)

    def _boards_now(self) -> int:
        if not self._where.tracked:
            return 1
        try:
            boards = Tracker(self._where.address).boards()[self._where.key]
        except TuningError:  # whoever asks for a board next says so
            return 1
        return max(1, min(boards, MOST_BOARDS))


def _failure_of_place(future: Any) -> TuningError | None:
    """Why a task says nothing of its candidate; None if it does."""
    from pebble import ProcessExpired

    try:
        future.result()
    except (NoBoardError, OtherBoardError, BoardLostError) as error:
        return error
    except FutureTimeout:
        return BoardLostError("a board hangs")
    except ProcessExpired as expired:
        if expired.exitcode == UNREACHABLE:
            return NoBoardError("a board does not answer")
        return BoardLostError(f"a session's process ended (exit code {expired.exitcode})")
    except TuningError as error:  # the tracker, or a server without our functions
        return NoBoardError(str(error))
    except Exception:
        return None
    return None
