"""A progress bar on stderr, for what takes long; where stderr is no terminal, nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from tvm_attention.commands.output import console

Advance = Callable[[str], None]


@contextmanager
def bar(total: int) -> Iterator[Advance]:
    """Gives a function that is called with the name of each of ``total`` steps as it begins. The bar is
    gone when the block ends, however it ends."""
    out = console(stderr=True)
    columns = (
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.description}"),
    )
    with Progress(*columns, console=out, transient=True, disable=not out.is_terminal) as progress:
        task, begun = progress.add_task("", total=total), 0

        def advance(name: str) -> None:
            nonlocal begun
            progress.update(task, completed=begun, description=name.replace("[", r"\["))
            begun += 1

        yield advance
