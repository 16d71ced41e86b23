"""Where candidates are measured: the one seam between the search and the machine it searches for."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol

from tvm_attention.database import Provenance
from tvm_attention.errors import TuningError
from tvm_attention.schedules import Candidate
from tvm_attention.target import HardwareTarget
from tvm_attention.workload import AttentionWorkload

Outcome = tuple[Any, str]
"""(result, "") or (None, why there is none)."""

Say = Callable[[str], None]
"""Hears what keeps a run waiting, in one line; "" when nothing does any more."""


class PlaceLostError(TuningError):
    """Nothing is left to measure on. What was measured is kept, and the same run goes on from there."""


@dataclass(frozen=True, slots=True)
class Measurement:
    """A candidate that was built, to be checked and timed. ``built`` is what the place's ``build`` gave."""

    built: Any
    workload: AttentionWorkload
    candidate: Candidate
    threads: int


class Workers(Protocol):
    """What builds and measures; whatever a candidate does costs that candidate alone."""

    def build(
        self, arguments: Sequence[tuple[AttentionWorkload, HardwareTarget, Candidate]]
    ) -> list[Outcome]:
        """The candidates as this place takes them, built side by side."""

    def measure(
        self, tasks: Sequence[Measurement], best: Callable[[], float]
    ) -> Iterator[tuple[int, Outcome]]:
        """(number of the task, seconds of a call) as they come. ``best`` says what to beat at the time:
        what is hopeless is timed once."""

    def confirm(
        self,
        built: Sequence[Any],
        workload: AttentionWorkload,
        candidates: Sequence[Candidate],
        threads: int,
    ) -> Outcome:
        """The list of Finalists (``tvm_attention.tuning.trials``), timed in turns on one machine."""


class Place(Protocol):
    """A machine, or several alike."""

    def hardware(self, target: str | HardwareTarget | None) -> HardwareTarget:
        """What to tune for: the machine as it is, or cut down to a target. Raises an AttentionError where
        it cannot be had or cannot run the target."""

    def threads(self, hardware: HardwareTarget) -> int:
        """Threads of a measurement, where nobody says how many."""

    def require_memory(self, workload: AttentionWorkload) -> None:
        """Raises InvalidValueError for a workload whose arrays do not fit there."""

    def workers(self, hardware: HardwareTarget, say: Say) -> AbstractContextManager[Workers]:
        """Started on entering, ended on leaving, whatever they are at."""

    def provenance(self, hardware: HardwareTarget, trials: int) -> Provenance:
        """What a record says of how it was measured."""
