"""python bench/plots.py RESULT.json ... --into FOLDER: results as pictures, SVG and, if asked, PNG.

Times over length, a line a contender; and which share of the machine's peak everyone reached.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from bench import results
from bench.report import peers, title
from bench.results import OURS, Result, WorkloadResult, kind_of
from tvm_attention.errors import AttentionError
from tvm_attention.plotting import new_figure
from tvm_attention.report import drawing
from tvm_attention.workload import AttentionWorkload

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WIDTH = 9.5  # inches
COLUMNS = 3
MARKERS = "s^Dv*PXph<>d"
COLOURS = (*drawing.PEERS, "#7a5195", "#8c564b", "#6b6b00", "#2f8f8f", "#b0413e")
PANEL_HEIGHT, ROW_HEIGHT = 3.1, 0.21


@dataclass(frozen=True, slots=True)
class Picture:
    """What ``draw`` draws on a figure so many inches high."""

    name: str
    height: float
    draw: Callable[[Figure], None]

    def svg(self, of: str) -> str:
        """As an element of a page that may have pictures of other results."""
        return drawing.svg(f"{of}-{self.name}", WIDTH, self.height, self.draw)


def pictures(result: Result) -> list[Picture]:
    """Of a result of attention alone: times over length, and shares of the peak where it was measured."""
    found = [_lengths(result)]
    if any(w["ceilings"] for w in result["workloads"]):
        found.append(_shares(result))
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit status 2 for a file that is no result, or without matplotlib."""
    parser = argparse.ArgumentParser(prog="plots", description=__doc__)
    parser.add_argument("files", nargs="+", type=Path, metavar="RESULT.json")
    parser.add_argument("--into", type=Path, required=True, metavar="FOLDER")
    parser.add_argument("--png", action="store_true", help="PNG as well")
    options = parser.parse_args(arguments)
    try:
        for path in options.files:
            for picture in pictures(results.read(path)):
                _write(picture, options.into / f"{path.stem}-{picture.name}", png=options.png)
    except AttentionError as error:
        print(f"plots: {error}", file=sys.stderr)
        return 2
    return 0


def _write(picture: Picture, stem: Path, *, png: bool) -> None:
    stem.parent.mkdir(parents=True, exist_ok=True)
    stem.with_suffix(".svg").write_text(picture.svg(stem.name), encoding="utf-8")
    if png:
        figure = new_figure(WIDTH, picture.height)
        picture.draw(figure)
        figure.savefig(stem.with_suffix(".png"), dpi=110)


def _lengths(result: Result) -> Picture:
    panels: dict[str, list[WorkloadResult]] = {}
    for one in result["workloads"]:
        if OURS in one["measured"]:
            panels.setdefault(_panel(one), []).append(one)
    lines = -(-len(panels) // COLUMNS) or 1

    def draw(figure: Figure) -> None:
        figure.suptitle(f"{title(result)}: a call's time over keys, less is better", fontsize=9)
        shape = (lines, min(COLUMNS, len(panels) or 1))
        for place, (name, rows) in enumerate(panels.items()):
            axes = figure.add_subplot(*shape, place + 1)
            _times(axes, rows, _everyone(result))
            axes.set_title(name, fontsize=9)
        _legend(figure, _everyone(result))

    return Picture("lengths", PANEL_HEIGHT * lines + 0.5, draw)


def _panel(one: WorkloadResult) -> str:
    w = AttentionWorkload.from_dict(one["workload"])
    decodes = w.length_class.startswith("decode")
    kinds = ("masked" if w.mask or w.ragged else "", "window" if w.window else "")
    what = "decoding" if decodes else "causal" if w.causal else "prefill"
    return ", ".join(filter(None, (what, *kinds, kind_of(one))))


def _times(axes: Axes, rows: list[WorkloadResult], everyone: Sequence[str]) -> None:
    """Lines where every length stands once; else points alone."""
    workloads = [AttentionWorkload.from_dict(one["workload"]) for one in rows]
    order = sorted(range(len(rows)), key=lambda n: workloads[n].key_length)
    once = len({w.key_length for w in workloads}) == len(workloads)
    for number, name in enumerate(everyone):
        points = [
            (workloads[n].key_length, _us_a_head(rows[n], workloads[n], name))
            for n in order
            if name in rows[n]["measured"]
        ]
        style = _style(number)
        axes.plot(
            [x for x, _ in points], [y for _, y in points], marker=style[0], color=style[1],
            markersize=4, linewidth=1.8 if name == OURS else 0.9, linestyle="-" if once else "",
            zorder=3 if name == OURS else 2, label=name,
        )  # fmt: skip
    axes.set(xscale="log", yscale="log", xlabel="keys", ylabel="us a key-value head")
    lengths = _apart([w.key_length for w in workloads])
    axes.set_xticks(lengths, list(map(str, lengths)), fontsize=8, rotation=30)
    axes.set_xticks([], minor=True)
    drawing.plain_ticks(axes.yaxis, *axes.get_ylim())
    axes.grid(True)


def _apart(lengths: Sequence[int]) -> list[int]:
    """So many of them that their numbers do not cover each other."""
    span = max(lengths) / min(lengths)
    found: list[int] = []
    for length in sorted(set(lengths)):
        if not found or length >= found[-1] * max(1.2, span**0.12):
            found.append(length)
    return found


def _us_a_head(one: WorkloadResult, w: AttentionWorkload, name: str) -> float:
    """Suites have fewer heads where they have more keys."""
    assert w.kv_heads is not None
    return one["measured"][name]["seconds"]["median"] * 1e6 / (w.batch * w.kv_heads)


def _shares(result: Result) -> Picture:
    rows = [w for w in result["workloads"] if w["ceilings"]]

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        ceilings = [c for w in rows if (c := w["ceilings"])]
        names = [f"{w['name']}, {c['limit']}" for w, c in zip(rows, ceilings, strict=True)]
        ours = [c["fraction"] for c in ceilings]
        axes.barh(names, ours, color=drawing.OURS, height=0.6, label=OURS)
        for number, name in enumerate(_everyone(result)[1:], 1):
            at = [n for n, w in enumerate(rows) if name in w["measured"]]
            shares = [ours[n] / rows[n]["measured"][name]["ratio"]["median"] for n in at]
            marker, colour = _style(number)
            axes.plot(shares, at, marker, color=colour, markersize=4, linestyle="", label=name)
        axes.axvline(1, color="#333333", linewidth=0.9, linestyle="--")
        axes.invert_yaxis()
        axes.margins(y=0.01)
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
        axes.tick_params(axis="y", length=0, labelsize=8)
        axes.set_xlabel("of the vector units' multiply-add peak (fma), or of the reads (read)")
        axes.grid(True, axis="x")
        figure.suptitle(f"{title(result)}: share of the machine's peak", fontsize=9)
        _legend(figure, _everyone(result))

    return Picture("shares", ROW_HEIGHT * len(rows) + 1.4, draw)


def _everyone(result: Result) -> list[str]:
    """Ours first, then the peers that were timed."""
    timed = {n for w in result["workloads"] for n in w["measured"]}
    return [OURS, *(n for n in peers(result) if n in timed)]


def _style(number: int) -> tuple[str, str]:
    """Marker and colour; of more contenders than colours, the marker tells."""
    if number == 0:
        return "o", drawing.OURS
    return MARKERS[(number - 1) % len(MARKERS)], COLOURS[(number - 1) % len(COLOURS)]


def _legend(figure: Figure, names: Sequence[str]) -> None:
    found: dict[str, Any] = {}
    for axes in figure.axes:
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
            found.setdefault(label, handle)
    shown = [n for n in names if n in found]
    figure.legend(
        [found[n] for n in shown],
        shown,
        loc="outside lower center",
        ncols=6,
        frameon=False,
        fontsize=8,
    )


if __name__ == "__main__":
    raise SystemExit(main())
