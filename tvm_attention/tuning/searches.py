"""All searches that left a journal, to be looked at."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tvm_attention.digest import EXPRESSIONS
from tvm_attention.errors import AttentionError
from tvm_attention.tuning.journal import Trial, journal_directory, journal_lines, parsed_trials
from tvm_attention.workload import AttentionWorkload

_LARGEST = 16 << 20  # bytes; a trial takes some 200


@dataclass(frozen=True, slots=True)
class Search:
    """One journal: for what it searched (None where it does not say, being of an earlier version), its
    trials in order and how it ended, None if it did not. ``current``: of the expression as it is now."""

    path: Path
    target: str
    workload: AttentionWorkload | None
    threads: int | None
    current: bool
    trials: tuple[Trial, ...]
    ended: str | None


def searches(folder: Path | None = None) -> list[Search]:
    """Those below a folder (default: where journals are kept) that have trials; other files are passed
    over."""
    root = journal_directory() if folder is None else folder
    return [search for path in sorted(root.rglob("*.jsonl")) for search in _search(path)]


def _search(path: Path) -> Iterator[Search]:
    if not path.is_file() or path.stat().st_size > _LARGEST:
        return
    lines = journal_lines(path)
    trials, ended = parsed_trials(lines)
    if not trials:
        return
    workload, threads, expression = _identity(lines)
    current = expression in EXPRESSIONS.values()
    yield Search(path, path.parent.name, workload, threads, current, tuple(trials), ended)


def _identity(lines: list[bytes]) -> tuple[AttentionWorkload | None, int | None, str | None]:
    """What the journal says of its search; a line "again" may come before it."""
    for line in lines[:2]:
        try:
            said = json.loads(line)["search"]
            workload = AttentionWorkload.from_dict(said["workload"])
            return workload, int(said["threads"]), str(said["expression"])
        except (ValueError, KeyError, TypeError, AttentionError):
            continue
    return None, None, None
