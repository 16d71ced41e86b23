"""Printing: consoles, tables, JSON, and numbers with units."""

from __future__ import annotations

import json

from rich.console import Console
from rich.table import Table
from rich.text import Text

_PIPE_WIDTH = 160  # where the output is not a terminal


class _Output(Console):
    """A console that leaves it to the command line what a closed pipe means."""

    def on_broken_pipe(self) -> None:
        raise  # rich calls it while it handles the BrokenPipeError


def console(*, stderr: bool = False) -> Console:
    """A console for tables and text, wide enough for a table's row where it is not a terminal."""
    own = _Output(stderr=stderr)
    return own if own.is_terminal else _Output(stderr=stderr, width=_PIPE_WIDTH)


def folding_table(*headings: str) -> Table:
    """A table that breaks a cell too wide for it into lines, and leaves nothing out."""
    table = Table()
    for heading in headings:
        table.add_column(heading, overflow="fold")
    return table


def say(out: Console, line: str, style: str = "") -> None:
    """A line as it is, however long: no markup is read in it and nothing is cut."""
    out.print(Text(line, style=style), soft_wrap=True)


def print_json(value: object) -> None:
    """The value on stdout; NaN and infinities, which JSON lacks, are an error."""
    print(json.dumps(value, indent=2, allow_nan=False))


def counted(count: int, thing: str) -> str:
    """ "1 record", "2 records"."""
    return f"{count} {thing}" + ("" if count == 1 else "s")


def seconds_text(seconds: float | None) -> str:
    """ "812 us", "1.25 ms" or "2.1 s"; "-" for None."""
    if seconds is None:
        return "-"
    if seconds < 1e-3:
        return f"{seconds * 1e6:.3g} us"
    return f"{seconds * 1e3:.3g} ms" if seconds < 1 else f"{seconds:.3g} s"


def duration_text(seconds: float) -> str:
    """ "42 s", "3 min 20 s" or "1 h 05 min"."""
    whole = max(0, round(seconds))
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02} min"


def size_text(size: int) -> str:
    """Bytes in the binary unit that suits: "48 KiB", "3.4 MiB"."""
    value, units = float(size), ["bytes", "KiB", "MiB", "GiB"]
    while value >= 1024 and len(units) > 1:
        value /= 1024
        units.pop(0)
    return f"{value:.3g} {units[0]}" if value < 100 else f"{value:.0f} {units[0]}"
