"""Trials measured so far, on disk: what an interrupted tuning run starts from again."""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from tvm_attention import environment
from tvm_attention.database.shapes import MOST_CHARACTERS, one_line
from tvm_attention.digest import EXPRESSIONS
from tvm_attention.errors import TuningError
from tvm_attention.schedules import Candidate
from tvm_attention.target import HardwareTarget
from tvm_attention.workload import AttentionWorkload

_AGAIN = '{"again": true}'
_MOST_BYTES = 1 << 26  # hundreds of thousands of trials
# OverflowError is that of a float of too many digits.
_DAMAGED = (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError)


@dataclass(frozen=True, slots=True)
class Trial:
    """A measured candidate: ``seconds`` of a call, or None and why there is none."""

    candidate: Candidate
    seconds: float | None
    error: str = ""


class Journal:
    """The trials of one (workload, target, thread count, expression): one JSON line each, appended. ``model``
    names what modelled them, where nothing was measured.

    A line cut short by a crash, or otherwise damaged, is skipped; all others count. What cannot be
    written raises TuningError.
    """

    def __init__(
        self,
        workload: AttentionWorkload,
        target: HardwareTarget,
        threads: int,
        model: str | None = None,
    ) -> None:
        identity = {
            "workload": workload.to_dict(),
            "hardware": dict(target.facts()),
            "target": target.name,
            "threads": threads,
            "expression": EXPRESSIONS[target.kind],
        } | ({} if model is None else {"model": model})
        self._header = json.dumps({"search": identity}, sort_keys=True) + "\n"
        digest = hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:24]
        self.path = journal_directory() / target.name / f"{digest}.jsonl"

    def read(self) -> tuple[list[Trial], str | None]:
        """(trials, how the search ended, None if it did not or if trials followed that)."""
        return parsed_trials(journal_lines(self.path))

    @property
    def again(self) -> bool:
        """Whether its search replaces what was recorded before, see :meth:`start_again`."""
        return journal_lines(self.path)[:1] == [_AGAIN.encode()]

    def add(self, trial: Trial) -> None:
        self._append(
            {
                "variant": trial.candidate.variant,
                "decisions": dict(trial.candidate.decisions),
                "seconds": trial.seconds,
                "error": _one_line(trial.error),
            }
        )

    def end(self, reason: str) -> None:
        """Mark the search as finished: the same run again skips it."""
        self._append({"ended": reason})

    def prepare(self) -> None:
        """Find out that trials can be written before any is measured."""
        with self._opened("a") as file:
            self._begin(file)

    def start_again(self) -> None:
        """Forget all trials, for a search whose record replaces the present one."""
        with self._opened("w") as file:
            file.write(_AGAIN + "\n" + self._header)

    def _begin(self, file: IO[str]) -> None:
        """A new journal says what it is of; its name alone tells that only to who knows already."""
        if not self.path.stat().st_size:
            file.write(self._header)
            file.flush()

    def _append(self, entry: dict[str, object]) -> None:
        with self._opened("a") as file:
            self._begin(file)
            # A line of its own even after one that a crash cut short.
            start = "\n" if self._is_cut_short() else ""
            file.write(start + json.dumps(entry, sort_keys=True) + "\n")

    def _is_cut_short(self) -> bool:
        with self.path.open("rb") as file:
            if not file.seek(0, os.SEEK_END):
                return False
            file.seek(-1, os.SEEK_END)
            return file.read(1) != b"\n"

    @contextmanager
    def _opened(self, mode: str) -> Iterator[IO[str]]:
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self.path.open(mode, encoding="utf-8") as file:
                yield file
        except OSError as error:
            raise TuningError(
                f"{self.path}: trials cannot be kept there: {error.strerror or error}; make the "
                f"folder writable, make room on the disk or set {environment.CACHE_DIR}"
            ) from error


def journal_lines(path: Path) -> list[bytes]:
    """The lines of a journal; of one that cannot be read, none."""
    try:
        if not path.is_file():  # a pipe or a device could be read for ever
            return []
        with path.open("rb") as file:
            return file.read(_MOST_BYTES).splitlines()
    except OSError:
        return []


def parsed_trials(lines: Iterable[bytes]) -> tuple[list[Trial], str | None]:
    """(trials, how the search ended) of a journal's lines, see :meth:`Journal.read`."""
    trials: list[Trial] = []
    ended = None
    for line in lines:
        try:
            entry = json.loads(line)
            if "ended" in entry:
                one_line("ended", entry["ended"])
                ended = entry["ended"]
            else:
                trials.append(_trial(entry))
                ended = None
        except _DAMAGED:
            continue
    return trials, ended


def _trial(entry: dict[str, Any]) -> Trial:
    """A trial from its line. Raises one of _DAMAGED for another."""
    decisions, seconds = entry["decisions"], entry["seconds"]
    if any(type(value) is not int for value in decisions.values()):
        raise TypeError("decisions")
    if seconds is not None and not 0.0 < float(seconds) < math.inf:
        raise ValueError("seconds")
    for name in ("variant", "error"):
        one_line(name, entry[name])
    return Trial(
        Candidate.of(entry["variant"], decisions),
        None if seconds is None else float(seconds),
        entry["error"],
    )


def _one_line(text: str) -> str:
    return "".join(c if c.isprintable() else " " for c in text)[:MOST_CHARACTERS]


def journal_directory() -> Path:
    """Where journals are kept."""
    return environment.cache_directory() / "journals"
