"""Results that a long study has so far, on disk: a later run of the same study goes on from them."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tvm_attention.errors import InvalidValueError


class ResultJournal:
    """One JSON line a result, the first saying what the study is of. A line that a crash cut short is
    measured again.

    Raises InvalidValueError for a file of another study.
    """

    def __init__(self, path: Path, identity: Mapping[str, Any]) -> None:
        self._path = path
        header = json.dumps(dict(identity), sort_keys=True)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
            if lines and lines[0] != header:
                raise InvalidValueError(
                    f"{path}: expected a journal of this study with these options, expressions and "
                    f"records, got one of {lines[0][:300]}; begin with a new file"
                )
            if not lines:
                self._append(header)
        except OSError as error:
            raise _unwritable(path, error) from error

    def read(self) -> dict[str, Any]:
        """Results by key; the last of a key counts."""
        found: dict[str, Any] = {}
        for line in self._path.read_text(encoding="utf-8").splitlines()[1:]:
            try:
                entry = json.loads(line)
                found[entry["key"]] = entry["result"]
            except (ValueError, KeyError, TypeError):
                continue
        return found

    def add(self, key: str, result: Any) -> None:
        """Append one, on disk when this returns."""
        self._append(json.dumps({"key": key, "result": result}, allow_nan=False))

    def _append(self, line: str) -> None:
        try:
            with self._path.open("ab") as file:
                # A line of its own even after one that was cut short.
                start = b"\n" if file.tell() and not self._ends_a_line() else b""
                file.write(start + line.encode() + b"\n")
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise _unwritable(self._path, error) from error

    def _ends_a_line(self) -> bool:
        with self._path.open("rb") as file:
            file.seek(-1, os.SEEK_END)
            return file.read(1) == b"\n"


def _unwritable(path: Path, error: OSError) -> InvalidValueError:
    return InvalidValueError(
        f"{path}: expected a file that can be written, got: {error.strerror or error}"
    )
