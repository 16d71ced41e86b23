"""The figures of what was measured."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from tvm_attention.quantities import counted
from tvm_attention.report.drawing import GRID, MARKERS, OURS, PEERS, plain_ticks, svg
from tvm_attention.report.labels import label_points
from tvm_attention.report.results import MODES, Measurement, ResultFile

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_LETTERS = 8  # points, of what is written along a line


def roofline(name: str, result: ResultFile) -> str:
    """What each workload reaches, against how often it uses a byte, under what the machine can do."""

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        points = [(m.intensity, m.gflops, m.name) for m in result.measurements]
        reached = [y for _, y, _ in points]
        x = min(p[0] for p in points) / 3, max(p[0] for p in points) * 3
        y = min(reached) / 2.5, max(result.fma_peak or 0, *reached) * 1.6
        axes.set(xscale="log", yscale="log", xlim=x, ylim=y, ylabel="GFLOP/s",
                 xlabel="operations a byte of query, key, value and result")  # fmt: skip
        plain_ticks(axes.xaxis, *x)
        plain_ticks(axes.yaxis, *y)
        axes.grid(True)
        for decodes, marker, what in ((False, "o", "prefill"), (True, "D", "decoding")):
            chosen = [m for m in result.measurements if _decodes(m) == decodes]
            axes.plot([m.intensity for m in chosen], [m.gflops for m in chosen], marker, color=OURS,
                      markersize=5, label=f"{what} ({len(chosen)})")  # fmt: skip
        axes.legend(loc="lower right", frameon=False)
        figure.draw_without_rendering()  # places are final from here on
        figure.set_layout_engine("none")
        lines = _ceilings(axes, result, figure.dpi)
        label_points(axes, points, figure.dpi, avoid=[spot for line in lines for spot in line])

    return svg(name, 9.5, 6.0, draw)


def _ceilings(axes: Axes, result: ResultFile, dpi: float) -> list[list[tuple[float, float]]]:
    """Draws them, and gives points along each and along what is written of it."""
    (low, high), (bottom, _) = axes.get_xlim(), axes.get_ylim()
    peak, reads, found = result.fma_peak, result.read_peaks, []
    if peak is not None:
        found.append(_line(axes, (low, peak), (high, peak), "-"))
        axes.annotate(f"multiply-adds of the vector units, {peak:.0f} GFLOP/s", (low, peak), (6, 4),
                      textcoords="offset points", fontsize=_LETTERS)  # fmt: skip
    if reads is None:
        return found
    memory, best = reads
    several = best > 1.1 * memory
    for rate, style, what in ((memory, "-", "main memory"), (best, "--", "caches")):
        if style == "--" and not several:
            continue
        start = max(low, bottom / rate)
        end = high if peak is None else min(high, peak / rate)
        found.append(_line(axes, (start, start * rate), (end, end * rate), style))
        above = style == "--" or not several
        text, last = f"{what}, {rate:.0f} GB/s", end / 1.25
        axes.annotate(text, (last, last * rate), (-2, 5) if above else (4, -5),
                      textcoords="offset points", fontsize=_LETTERS, ha="right",
                      va="bottom" if above else "top", rotation=_slope(axes),
                      rotation_mode="anchor")  # fmt: skip
        width, side = 0.6 * _LETTERS * len(text) * dpi / 72.0, _LETTERS * dpi / 72.0
        found.append(_written(axes, (last, last * rate), width, side if above else -side))
    return found


def _written(
    axes: Axes, end: tuple[float, float], width: float, side: float
) -> list[tuple[float, float]]:
    """Points along a text so wide that ends at ``end``, so far to that side of its line, in pixels."""
    slope = math.radians(_slope(axes))
    along, across = (
        np.array([math.cos(slope), math.sin(slope)]),
        np.array([-math.sin(slope), math.cos(slope)]),
    )
    steps = np.linspace(0.0, width, 80)[:, None]
    places = axes.transData.transform(end) - steps * along + side * across
    return [(x, y) for x, y in axes.transData.inverted().transform(places).tolist()]


def _line(
    axes: Axes, start: tuple[float, float], end: tuple[float, float], style: str
) -> list[tuple[float, float]]:
    x, y = (np.geomspace(a, b, 100) for a, b in zip(start, end, strict=True))
    axes.plot(x, y, style, color="#333333", linewidth=1.2)
    return list(zip(x.tolist(), y.tolist(), strict=True))


def _slope(axes: Axes) -> float:
    """Degrees on paper of a line that goes up a decade in a decade."""
    (x0, y0), (x1, y1) = axes.transData.transform([(1.0, 1.0), (10.0, 10.0)])
    return math.degrees(math.atan2(y1 - y0, x1 - x0))


def _decodes(m: Measurement) -> bool:
    return m.workload.length_class.startswith("decode")


def speeds(name: str, results: Sequence[ResultFile]) -> str:
    """Each peer's time over ours against the number of keys, a panel for each mode and number of threads
    measured."""
    panels: dict[tuple[str, int], list[ResultFile]] = {}
    for r in results:
        if r.peers:
            panels.setdefault((r.mode, r.threads), []).append(r)
    peers = list(dict.fromkeys(p for r in results for p in r.peers))

    def draw(figure: Figure) -> None:
        every = figure.subplots(1, len(panels), sharey=True, squeeze=False)[0]
        for axes, ((mode, threads), chosen) in zip(every, panels.items(), strict=True):
            for number, peer in enumerate(peers):
                shift = 1.07 ** (number * min(1.0, 4 / len(peers)))  # so that bars stay apart
                _peer(axes, chosen, peer, number, shift)
            _speed_axes(axes, f"{MODES[mode]}, {counted(threads, 'thread')}", results)
        every[0].set_ylabel("peer's time / ours")
        shown = {
            label: line
            for axes in every
            for line, label in zip(*axes.get_legend_handles_labels(), strict=True)
        }
        figure.legend(
            shown.values(), shown.keys(), loc="outside lower center", frameon=False, ncols=5
        )

    return svg(name, 9.5, 4.9, draw)


def _peer(panel: Axes, results: Sequence[ResultFile], peer: str, number: int, shift: float) -> None:
    """Filled markers for prefill, hollow ones for decoding; bars from quartile to quartile."""
    color, marker = PEERS[number % len(PEERS)], MARKERS[number % len(MARKERS)]
    for decodes in (False, True):
        found = [
            (m.workload.key_length, m.peers[peer])
            for r in results
            for m in r.measurements
            if peer in m.peers and _decodes(m) == decodes
        ]
        if not found:
            continue
        x = [keys * shift for keys, _ in found]
        median = np.array([s.median for _, s in found])
        bars = np.array([[s.median - s.q1, s.q3 - s.median] for _, s in found]).T
        panel.errorbar(
            x, median, np.maximum(bars, 0), fmt=marker, color=color, markersize=4.5, elinewidth=0.8,
            markerfacecolor="white" if decodes else color, alpha=0.9,
            label=f"{peer}, decoding" if decodes else peer,
        )  # fmt: skip


def _speed_axes(panel: Axes, title: str, results: Sequence[ResultFile]) -> None:
    ratios = [
        edge
        for r in results
        for m in r.measurements
        for s in m.peers.values()
        for edge in (s.q1, s.q3)
    ]
    lowest, highest = min(0.8, 0.9 * min(ratios)), max(ratios) * 1.1
    panel.set(xscale="log", yscale="log", ylim=(lowest, highest), xlabel="keys", title=title)
    panel.set_xscale("log", base=2)
    panel.axhline(1.0, color="#333333", linewidth=1)
    panel.axhspan(lowest, 1.0, color=GRID, alpha=0.6, linewidth=0)
    plain_ticks(panel.yaxis, lowest, highest)
    panel.xaxis.set_ticks([], minor=True)
    panel.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    panel.grid(True)
