"""A progress bar for what takes long; where there is no terminal, nothing."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from tvm_attention.commands.output import console

Advance = Callable[[str], None]
Item = TypeVar("Item")


@contextmanager
def bar(total: int, beside: Console | None = None) -> Iterator[Advance]:
    """Gives a function that is called with the name of each of ``total`` steps as it begins.

    The bar is on stderr, or on the console ``beside`` if that is a terminal: lines that are printed on
    that meanwhile stay above the bar. It is gone when the block ends, however it ends.
    """
    out = beside if beside is not None and beside.is_terminal else console(stderr=True)
    progress = Progress(
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.description}"),
        console=out,
        transient=True,
        disable=not out.is_terminal,
        # A file that stdout goes to must get what is printed, and not the terminal.
        redirect_stdout=sys.stdout.isatty(),
    )
    with progress:
        task, begun = progress.add_task("", total=total), 0

        def advance(name: str) -> None:
            nonlocal begun
            progress.update(task, completed=begun, description=escape(name))
            begun += 1

        yield advance


def stepped(items: Sequence[Item], name: Callable[[Item], str]) -> Iterator[Item]:
    """The items, with a bar that shows the name of the present one."""
    with bar(len(items)) as advance:
        for item in items:
            advance(name(item))
            yield item
