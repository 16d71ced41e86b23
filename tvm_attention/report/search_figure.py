"""The figure of a search."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tvm_attention.report.drawing import OURS, PEERS, QUIET, plain_ticks, svg
from tvm_attention.report.influence import Influence, best_so_far
from tvm_attention.tuning.searches import Search

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_MOST_DECISIONS = 8
_MOST_POINTS = 400  # of a very long search every second, third, ... trial is drawn
_HIGHEST = 6.0  # times the best: beyond, the curve would be a line on the floor


def search_figure(name: str, search: Search, influences: Sequence[Influence]) -> str:
    """The best so far over the trials, and how much each decision had to do with it."""

    def draw(figure: Figure) -> None:
        left, right = figure.subplots(1, 2, width_ratios=(3, 2))
        _curve(left, search)
        shown = influences[:_MOST_DECISIONS]
        right.barh([i.decision for i in shown], [i.share for i in shown], color=OURS, height=0.65)
        right.set(
            xlim=(0, 1),
            ylim=(max(len(shown), 4) - 0.5, -0.5),
            xlabel="share of the variation of log time",
        )
        right.xaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
        right.tick_params(axis="y", length=0)
        if not shown:
            right.text(0.5, 0.5, "too few trials to tell", ha="center", transform=right.transAxes)
            right.set_yticks([])

    return svg(name, 9.5, 2.7, draw)


def _curve(axes: Axes, search: Search) -> None:
    times = [t.seconds for t in search.trials]
    measured = [(n, s) for n, s in enumerate(times, 1) if s is not None]
    fastest = min((s for _, s in measured), default=1.0)
    unit, scale = ("ms", 1e3) if fastest >= 1e-3 else ("us", 1e6)
    _dots(axes, [n for n, _ in measured], [s * scale for _, s in measured])
    first, steps = times[0], _steps(best_so_far(search.trials))
    axes.plot([n for n, _ in steps], [s * scale for _, s in steps], drawstyle="steps-post", color=OURS,
              linewidth=1.8, label="best so far")  # fmt: skip
    if first is not None:
        axes.axhline(first * scale, color="#333333", linestyle="--", linewidth=0.9,
                     label="the first trial, the default schedule")  # fmt: skip
    failed = [n for n, s in enumerate(times, 1) if s is None]
    if failed:
        shown = failed[:: _stride(failed)]
        axes.plot(shown, [0.97] * len(shown), "x", color=PEERS[0], markersize=4, label="failed",
                  transform=axes.get_xaxis_transform())  # fmt: skip
    if measured:
        top = min(max(s for _, s in measured), _HIGHEST * fastest)
        limits = (0.92 * fastest * scale, 1.4 * top * scale)  # room for the legend
        axes.set(ylim=limits, yscale="log")
        plain_ticks(axes.yaxis, *limits)
    axes.set(xlabel="trial", ylabel=f"{unit} a call", xlim=(0, len(times) + 1))
    axes.grid(True, axis="y")
    axes.legend(loc="upper right", frameon=False, fontsize=7.5, ncols=2)


def _dots(axes: Axes, x: Sequence[int], y: Sequence[float]) -> None:
    every = _stride(x)
    label = "a trial" if every == 1 else f"a trial, 1 of {every}"
    axes.plot(x[::every], y[::every], "o", color=QUIET, markersize=3, label=label)


def _stride(points: Sequence[object]) -> int:
    return -(-len(points) // _MOST_POINTS) or 1


def _steps(best: Sequence[float | None]) -> list[tuple[int, float]]:
    """(trial, seconds) where the best changes, and at the end."""
    found: list[tuple[int, float]] = []
    for n, seconds in enumerate(best, 1):
        if seconds is not None and (not found or seconds < found[-1][1] or n == len(best)):
            found.append((n, seconds))
    return found
