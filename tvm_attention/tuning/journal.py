"""Trials measured so far, on disk: what an interrupted tuning run starts from again."""

from __future__ import annotations

import hashlib
import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tvm_attention import environment
from tvm_attention.digest import EXPRESSION_DIGEST
from tvm_attention.schedules import Candidate
from tvm_attention.target import HardwareTarget
from tvm_attention.workload import AttentionWorkload


@dataclass(frozen=True, slots=True)
class Trial:
    """A measured candidate: ``seconds`` of a call, or None and why there is none."""

    candidate: Candidate
    seconds: float | None
    error: str = ""


class Journal:
    """The trials of one (workload, target, thread count, expression): one JSON line each, appended.

    A line cut short by a crash, or otherwise damaged, is skipped; all others count.
    """

    def __init__(self, workload: AttentionWorkload, target: HardwareTarget, threads: int) -> None:
        identity = {
            "workload": workload.to_dict(),
            "hardware": dict(target.facts()),
            "target": target.name,
            "threads": threads,
            "expression": EXPRESSION_DIGEST,
        }
        digest = hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:24]
        self.path = journal_directory() / target.name / f"{digest}.jsonl"

    def read(self) -> tuple[list[Trial], str | None]:
        """(trials, how the search ended, None if it did not)."""
        trials: list[Trial] = []
        ended = None
        try:
            lines = self.path.read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError):
            return trials, ended
        for line in lines:
            try:
                entry = json.loads(line)
                if "ended" in entry:
                    ended = str(entry["ended"])
                else:
                    trials.append(_trial(entry))
            except (ValueError, KeyError, TypeError, AttributeError):
                continue
        return trials, ended

    def add(self, trial: Trial) -> None:
        self._append(
            {
                "variant": trial.candidate.variant,
                "decisions": dict(trial.candidate.decisions),
                "seconds": trial.seconds,
                "error": trial.error,
            }
        )

    def end(self, reason: str) -> None:
        """Mark the search as finished: the same run again skips it."""
        self._append({"ended": reason})

    def clear(self) -> None:
        self.path.unlink(missing_ok=True)

    def _append(self, entry: dict[str, object]) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        # A line of its own even after one that a crash cut short.
        cut = self.path.exists() and not self.path.read_bytes().endswith(b"\n")
        with self.path.open("a", encoding="utf-8") as file:
            file.write(("\n" if cut else "") + json.dumps(entry, sort_keys=True) + "\n")


def _trial(entry: dict[str, Any]) -> Trial:
    """A trial from its line. Raises ValueError, KeyError, TypeError or AttributeError for another."""
    decisions, seconds = entry["decisions"], entry["seconds"]
    if any(type(value) is not int for value in decisions.values()):
        raise TypeError("decisions")
    if seconds is not None and not 0.0 < float(seconds) < math.inf:
        raise ValueError("seconds")
    return Trial(
        Candidate.of(str(entry["variant"]), decisions),
        None if seconds is None else float(seconds),
        str(entry["error"]),
    )


def journal_directory() -> Path:
    """Where journals are kept."""
    return environment.cache_directory() / "journals"
