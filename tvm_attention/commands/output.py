"""Printing: consoles, tables, JSON."""

from __future__ import annotations

import json

from rich.console import Console
from rich.table import Table
from rich.text import Text

from tvm_attention.quantities import counted, duration_text, seconds_text, size_text

__all__ = [
    "console",
    "counted",
    "duration_text",
    "folding_table",
    "print_json",
    "say",
    "seconds_text",
    "size_text",
]

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
