"""What a tuning run reports while it runs and when it ends."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from tvm_attention.database import TuningRecord
from tvm_attention.schedules import Candidate
from tvm_attention.workload import AttentionWorkload


@dataclass(frozen=True, slots=True, kw_only=True)
class TuningProgress:
    """A moment of a tuning run; times in seconds, None where not known yet.

    ``index`` of ``count`` workloads; ``phase`` is "build" (the next candidates are being built),
    "search" (one was measured), "confirm", "done" or "skipped"; ``failures`` counts failed trials by
    reason; ``remaining`` estimates the time this workload still takes; ``note`` says what the run
    waits for, "" if it does not.
    """

    workload: AttentionWorkload
    index: int
    count: int
    phase: str
    trial: int
    trials: int
    best: float | None
    default: float | None
    failures: Mapping[str, int]
    elapsed: float
    remaining: float | None
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class TuningOutcome:
    """How tuning one workload ended: the best candidate, its seconds and the default schedule's in one
    interleaved run, whether a record was kept and why (not)."""

    workload: AttentionWorkload
    best: Candidate | None
    tuned: float | None
    default: float | None
    kept: bool
    reason: str
    trials: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TuningResult:
    """Records written to ``log``, and the outcome of every workload that was finished. ``stopped`` says
    what ended the run before its time, if anything did; the same call then goes on."""

    records: tuple[TuningRecord, ...]
    outcomes: tuple[TuningOutcome, ...]
    log: Path
    interrupted: bool
    stopped: str = ""


Report = Callable[[TuningProgress], None]
