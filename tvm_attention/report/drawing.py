"""Figures as SVG text, to be put into a page: text stays text, and equal input gives equal bytes."""

from __future__ import annotations

import io
import math
from collections.abc import Callable
from typing import TYPE_CHECKING

from tvm_attention.plotting import new_figure

if TYPE_CHECKING:
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure

OURS, QUIET, GRID = "#1f5fa8", "#9aa0a6", "#e4e6e9"
# Told apart by colour-blind readers too (Okabe and Ito); peers have markers besides.
PEERS = ("#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000")
MARKERS = "os^Dv*"
_STYLE = {
    "svg.fonttype": "none",
    "text.parse_math": False,  # names come from files
    "font.family": "sans-serif",
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": QUIET,
    "axes.axisbelow": True,
    "grid.color": GRID,
}


def svg(name: str, width: float, height: float, draw: Callable[[Figure], None]) -> str:
    """What ``draw`` draws on a figure of so many inches, as an <svg> element. ``name`` keeps the ids in
    it apart from those of other figures on the page.

    Raises UnsupportedError without matplotlib.
    """
    figure = new_figure(width, height)  # first, as it says what is missing
    import matplotlib

    with matplotlib.rc_context({**_STYLE, "svg.hashsalt": name}):
        draw(figure)
        text = io.StringIO()
        figure.savefig(
            text, format="svg", metadata=dict.fromkeys(("Creator", "Date", "Format", "Type"))
        )
    whole = text.getvalue()
    return whole[whole.index("<svg") :]


def plain_ticks(axis: Axis, low: float, high: float) -> None:
    """Ticks of a logarithmic axis from low to high at round numbers, written out, not as powers."""
    for digits in ((1.0,), (1.0, 3.0), (1.0, 2.0, 5.0), (1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 7.0)):
        powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
        ticks = [d * 10.0**p for p in powers for d in digits if low <= d * 10.0**p <= high]
        if len(ticks) >= 4:
            break
    axis.set_ticks(ticks, [f"{tick:g}" for tick in ticks])
    axis.set_ticks([], minor=True)
