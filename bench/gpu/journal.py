"""What has been done of a run, a line each: a run that was cut off goes on behind the last one."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypedDict

Values = dict[str, Any]


class Line(TypedDict):
    """``state`` is "begun", "done" or "failed"; a unit of work is known by its part and its name."""

    part: str
    name: str
    state: str
    values: Values


class Journal:
    """Units of work in a file of JSON lines, each begun before it is done.

    A unit that was begun and neither done nor failed took its process with it.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        path.parent.mkdir(parents=True, exist_ok=True)

    def lines(self) -> Iterator[Line]:
        """All whole lines; one that was cut off while it was written is passed over."""
        if not self._path.exists():
            return
        for text in self._path.read_text(encoding="utf-8").splitlines():
            try:
                line: Line = json.loads(text)
            except ValueError:
                continue
            yield line

    def last(self) -> dict[tuple[str, str], Line]:
        """The last line of every unit."""
        return {(line["part"], line["name"]): line for line in self.lines()}

    def done(self, part: str) -> dict[str, Values]:
        """What the units of a part gave, by name."""
        return self._of(part, "done")

    def failed(self, part: str) -> dict[str, Values]:
        """Why units of a part gave nothing, by name."""
        return self._of(part, "failed")

    def crashed(self) -> list[tuple[str, str]]:
        """Units that were begun and never ended."""
        return [unit for unit, line in self.last().items() if line["state"] == "begun"]

    def run(self, part: str, name: str, work: Callable[[], Values]) -> bool:
        """Do a unit of work unless it is done or has failed; False if it fails now.

        Whatever it raises is written down: what comes after it may still succeed.
        """
        line = self.last().get((part, name))
        if line is not None and line["state"] != "begun":
            return True
        self.write(part, name, "begun", {})
        try:
            values = work()
        except Exception as error:
            self.write(part, name, "failed", {"error": f"{type(error).__name__}: {error}"[:2000]})
            return False
        self.write(part, name, "done", values)
        return True

    def write(self, part: str, name: str, state: str, values: Values) -> None:
        """Add a line."""
        line = Line(part=part, name=name, state=state, values=values)
        before = self._path.read_bytes() if self._path.exists() else b""
        cut_off = bool(before) and not before.endswith(b"\n")
        with self._path.open("a", encoding="utf-8") as file:
            file.write("\n" * cut_off + json.dumps(line) + "\n")

    def _of(self, part: str, state: str) -> dict[str, Values]:
        return {
            n: line["values"]
            for (p, n), line in self.last().items()
            if (p, line["state"]) == (part, state)
        }
