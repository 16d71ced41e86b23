"""Tuning logs on disk: reading them, and changing them with several writers."""

from __future__ import annotations

import glob
import os
import uuid
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from filelock import FileLock, Timeout

from tvm_attention import environment
from tvm_attention.database.lines import MAX_LOG_BYTES, format_log, parse_log
from tvm_attention.database.places import SUFFIX, shipped_folder
from tvm_attention.database.record import TuningRecord
from tvm_attention.database.selection import Expression, merge_records, prune_records
from tvm_attention.errors import TuningLogError, TuningLogWarning

if TYPE_CHECKING:
    from importlib.abc import Traversable

LOCK_SECONDS = 60.0
_UNIQUE = "[0-9a-f]" * 32  # ends the name of a file that is being written

_warned: set[str] = set()  # refusals that a warning was given of


@dataclass(frozen=True, slots=True)
class TuningLog:
    """One log as it was read: its records, or none and the reason for its refusal.

    ``name`` is "user" or "shipped" followed by its folder and file; ``refusal`` begins with it.
    """

    name: str
    user: bool
    records: tuple[TuningRecord, ...]
    refusal: str | None = None


def user_logs() -> tuple[TuningLog, ...]:
    """The user's own logs, damaged ones with the reason they were refused. Never raises."""
    return tuple(_read_folder(environment.log_directory(), user=True))


def shipped_logs() -> tuple[TuningLog, ...]:
    """The logs that came with the library."""
    return tuple(_read_folder(shipped_folder(), user=False))


def available_logs() -> tuple[TuningLog, ...]:
    """User logs, then shipped logs."""
    return user_logs() + shipped_logs()


def read_log(path: Path) -> tuple[TuningRecord, ...]:
    """The records of one log. Raises TuningLogError if it cannot be read or is damaged anywhere."""
    return parse_log(_read(path, str(path)), str(path))


def write_log(path: Path, records: Iterable[TuningRecord]) -> None:
    """Replace a log by these records at once: a reader sees the old or the new one, never a part.

    Raises TuningLogError if it cannot be written; the old log is then still there.
    """
    with _locked(path):
        _replace(path, records)


def merge_into_log(
    path: Path, records: Iterable[TuningRecord], *, replace: bool = False
) -> tuple[TuningRecord, ...]:
    """Add records to a log, new or not, and return what it now holds (see merge_records).

    With ``replace``, they take the place of those of the same case even where those are faster.
    Several processes may do so at once. Raises TuningLogError, and changes nothing, if the log is
    damaged or cannot be written.
    """
    added = list(records)
    with _locked(path):
        present = read_log(path) if path.exists() else ()
        if replace:
            keys = {record.key for record in added}
            present = tuple(record for record in present if record.key not in keys)
        merged = merge_records(present, added)
        _replace(path, merged)
    return merged


def require_mergeable(path: Path) -> None:
    """Find out that merge_into_log will find a log that it can read and write. Raises TuningLogError
    as it does."""
    with _locked(path):
        if path.exists():
            read_log(path)
        _partial(path, b"").unlink()


def warn_of_refusals(logs: Iterable[TuningLog]) -> None:
    """A TuningLogWarning for each refused log, once a process for each reason."""
    for log in logs:
        if log.refusal is not None and log.refusal not in _warned:
            _warned.add(log.refusal)
            warnings.warn(log.refusal, TuningLogWarning, stacklevel=2)


def prune_log(path: Path, expression: Expression = None) -> list[tuple[TuningRecord, str]]:
    """Drop the records of a log that no longer serve and return them with the reasons (see
    prune_records). Raises TuningLogError as merge_into_log does."""
    with _locked(path):
        kept, dropped = prune_records(read_log(path), expression)
        if dropped:
            _replace(path, kept)
    return dropped


def _read_folder(root: Path | Traversable, *, user: bool) -> Iterator[TuningLog]:
    """Every <target>/<name>.jsonl below a folder, by name. No other file is opened."""
    origin = "user" if user else "shipped"
    try:
        folders = [folder for folder in _listed(root) if folder.is_dir()]
    except FileNotFoundError:
        return
    except OSError as error:
        name = f"{origin} {_shown(root.name)}"
        yield TuningLog(name, user, (), f"{name}: cannot be read: {error}")
        return
    for folder in folders:
        yield from _read_target(folder, f"{origin} {_shown(folder.name)}", user)


def _read_target(folder: Path | Traversable, name: str, user: bool) -> Iterator[TuningLog]:
    try:
        files = [file for file in _listed(folder) if file.name.endswith(SUFFIX)]
    except OSError as error:
        yield TuningLog(name, user, (), f"{name}: cannot be read: {error}")
        return
    for file in files:
        full_name = f"{name}/{_shown(file.name)}"
        try:
            records = parse_log(_read(file, full_name), full_name, folder.name)
            yield TuningLog(full_name, user, records)
        except TuningLogError as error:
            yield TuningLog(full_name, user, (), str(error))


def _listed(folder: Path | Traversable) -> list[Path | Traversable]:
    return sorted(folder.iterdir(), key=lambda entry: entry.name)


def _read(path: Path | Traversable, name: str) -> bytes:
    try:
        if not path.is_file():  # a pipe or a device could be read for ever
            raise TuningLogError(f"{name}: expected a file that exists")
        with path.open("rb") as file:
            data: bytes = file.read(MAX_LOG_BYTES + 1)
            return data
    except OSError as error:
        raise TuningLogError(f"{name}: cannot be read: {error}") from error


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold the log against other writers. Readers need no lock: a log is only ever replaced."""
    lock = path.with_name(f".{path.name}.lock")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(lock, timeout=LOCK_SECONDS):
            for partial in path.parent.glob(f".{glob.escape(path.name)}.{_UNIQUE}"):
                partial.unlink(missing_ok=True)  # its writer was killed: it would hold the lock
            yield
    except Timeout:
        raise TuningLogError(
            f"{path}: another process has held {lock.name} for {LOCK_SECONDS:g} s; try again"
        ) from None
    except OSError as error:
        raise TuningLogError(f"{path}: cannot be written: {error}") from error


def _replace(path: Path, records: Iterable[TuningRecord]) -> None:
    partial = _partial(path, format_log(records))
    try:
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)


def _partial(path: Path, data: bytes) -> Path:
    """A new file next to a log with this content, on the disk for good."""
    # Not tempfile: its files are for the owner only, and logs are there to be shared.
    partial = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    try:
        with partial.open("xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
    except BaseException:
        partial.unlink(missing_ok=True)
        raise
    return partial


def _shown(name: str) -> str:
    return name if name.isprintable() else ascii(name)
