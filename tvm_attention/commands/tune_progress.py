"""A tuning run as it goes: live on a terminal, a line for each finished workload elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from tvm_attention.commands.output import counted, duration_text, say, seconds_text
from tvm_attention.suites import shape_text
from tvm_attention.tuning import TuningProgress
from tvm_attention.workload import AttentionWorkload

Names = Mapping[AttentionWorkload, str]
Show = Callable[[TuningProgress], None]
_FINISHED = ("done", "skipped")


@contextmanager
def view(out: Console, names: Names) -> Iterator[Show]:
    """Gives the function that shows progress on a console. ``names`` are those of the workloads."""
    lines = FinishedLines(out, names)
    if not out.is_terminal:
        yield lines
        return
    picture = LivePicture(names)
    with Live(picture, console=out, transient=True, refresh_per_second=4):

        def show(progress: TuningProgress) -> None:
            picture.update(progress)
            lines(progress)

        yield show


class LivePicture:
    """The latest moment, its clocks running on."""

    def __init__(self, names: Names, clock: Callable[[], float] = time.monotonic) -> None:
        self._names = names
        self._clock = clock
        self._latest: TuningProgress | None = None
        self._since = clock()
        self._waiting = Spinner("dots", "starting the processes that build and measure")

    def update(self, progress: TuningProgress) -> None:
        """Shows another moment from now on."""
        self._latest, self._since = progress, self._clock()

    def __rich__(self) -> RenderableType:
        latest = self._latest
        if latest is None:
            return self._waiting
        if latest.phase in _FINISHED:
            self._waiting.update(
                text=f"{latest.index + 1} of {counted(latest.count, 'workload')} done"
            )
            return self._waiting
        passed = self._clock() - self._since
        left = None if latest.remaining is None else max(0.0, latest.remaining - passed)
        now = replace(latest, elapsed=latest.elapsed + passed, remaining=left)
        return panel(now, title(now, self._names))


class FinishedLines:
    """Prints a line when a workload is finished, and when something new is waited for."""

    def __init__(self, out: Console, names: Names) -> None:
        self._out = out
        self._names = names
        self._said: set[int] = set()
        self._waited = ""

    def __call__(self, progress: TuningProgress) -> None:
        why = progress.note.partition(";")[0]  # what follows counts down
        if why and why != self._waited:
            say(self._out, f"{title(progress, self._names)}: {progress.note}")
        self._waited = why
        if progress.phase not in _FINISHED or progress.index in self._said:
            return
        self._said.add(progress.index)
        facts = ", ".join(f"{name} {text}" for name, text in figures(progress).items())
        say(self._out, f"{title(progress, self._names)}: {progress.phase}: {facts}")


def title(progress: TuningProgress, names: Names) -> str:
    """Which workload of how many, "2/7 bert-128 1x12x128x128x64"."""
    shape = shape_text(progress.workload)
    name = names.get(progress.workload, shape)
    which = name if name == shape else f"{name} {shape}"
    return f"{progress.index + 1}/{progress.count} {which}"


def figures(progress: TuningProgress) -> dict[str, str]:
    """What is known at this moment, by name."""
    found = {
        "trial": f"{progress.trial} of {progress.trials}",
        "best so far": seconds_text(progress.best),
        "default": seconds_text(progress.default),
    }
    if progress.failures:
        most = sorted(progress.failures.items(), key=lambda item: (-item[1], item[0]))
        found["failed"] = ", ".join(f"{count} {reason}" for reason, count in most)
    if progress.note:
        found["waiting"] = progress.note
    found["elapsed"] = duration_text(progress.elapsed)
    if progress.remaining is not None and progress.phase not in _FINISHED:
        found["time left"] = f"at most {duration_text(progress.remaining)}"
    return found


def panel(progress: TuningProgress, heading: str) -> RenderableType:
    """The live picture of a moment."""
    grid = Table.grid(padding=(0, 2))
    for name, text in figures(progress).items():
        grid.add_row(Text(name, style="dim"), Text(text, overflow="fold"))
    bar = ProgressBar(total=progress.trials, completed=progress.trial, width=40)
    return Group(Text(f"{heading}: {progress.phase}", style="bold"), bar, grid)
