"""Pictures of attention, by matplotlib."""

from __future__ import annotations

import math
from collections.abc import Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tvm_attention.errors import InvalidTypeError, InvalidValueError, UnsupportedError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_INCHES = 0.21  # a token, so that its label can be read
_LABELS = 60  # on a side, at most
_COLUMNS = 4


def plot_attention(
    weights: Any,
    tokens: Sequence[str],
    *,
    key_tokens: Sequence[str] | None = None,
    titles: Sequence[str] | None = None,
    columns: int = _COLUMNS,
) -> Figure:
    """Draw which word looks at which: a row for each query, a column for each key, darker for more.

    weights (L, S), or (heads, L, S) for a panel each, are rows of a softmax, as ``attention(...,
    return_weights=True)`` gives them: NumPy arrays or anything np.asarray takes. ``tokens`` are the L
    queries' words, ``key_tokens`` the S keys', the same if left out. ``titles``: of the panels, by default
    "head 0" and so on. ``columns``: panels side by side, at most.

    Returns a matplotlib Figure of its own, which no pyplot state knows: ``figure.savefig("map.png")``;
    a notebook shows it. All panels share one scale of colours.

    Raises UnsupportedError without matplotlib (the extra viz), InvalidTypeError or InvalidValueError for
    weights and words that do not fit.
    """
    maps = _maps(weights)
    heads, rows, keys = maps.shape
    queries = _words("tokens", "row", tokens, rows)
    seen = _words("key_tokens", "column", tokens if key_tokens is None else key_tokens, keys)
    if titles is not None and len(titles) != heads:
        raise InvalidValueError(f"titles: expected {heads}, got {len(titles)}")
    if columns < 1:
        raise InvalidValueError(f"columns: expected 1 or more, got {columns}")
    across = min(columns, heads)
    down = math.ceil(heads / across)
    width, height = (max(1.6, _INCHES * min(n, _LABELS)) for n in (keys, rows))
    beside, below = (_INCHES / 2.4 * min(24, max(map(len, words))) for words in (queries, seen))
    figure = new_figure(across * (width + beside + 0.2) + 0.9, down * (height + below + 0.45))
    highest = float(maps.max()) or 1.0
    axes: list[Axes] = list(figure.subplots(down, across, squeeze=False).flat)
    for place, panel in enumerate(axes):
        if place >= heads:
            panel.set_axis_off()
            continue
        image = panel.imshow(maps[place], cmap="Blues", vmin=0.0, vmax=highest, aspect="auto")
        if titles is not None or heads > 1:
            panel.set_title(titles[place] if titles is not None else f"head {place}", fontsize=10)
        _label(panel, queries, seen)
    bar = figure.colorbar(image, ax=axes, shrink=1 / down, fraction=0.03, pad=0.01)
    bar.set_label("share of attention", fontsize=8)
    bar.ax.tick_params(labelsize=7)
    return figure


def new_figure(width: float, height: float) -> Figure:
    """An empty figure of so many inches. Raises UnsupportedError without matplotlib."""
    if find_spec("matplotlib") is None:
        raise UnsupportedError(
            "drawing needs the package matplotlib, which is not installed; pip install "
            "'tvm-attention[viz]', or matplotlib"
        )
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")


def _maps(weights: Any) -> NDArray[np.float64]:
    try:
        maps = np.asarray(weights, np.float64)
    except (TypeError, ValueError) as error:
        raise InvalidTypeError(f"weights: expected an array of numbers, got {error}") from None
    if maps.ndim == 2:
        maps = maps[None]
    if maps.ndim != 3 or 0 in maps.shape:
        raise InvalidValueError(
            f"weights: expected (queries, keys) or (heads, queries, keys), none of them 0, got shape "
            f"{maps.shape}"
        )
    if not (np.isfinite(maps).all() and maps.min() >= 0):
        raise InvalidValueError(
            "weights: expected rows of a softmax, got negative numbers, infinities or NaN"
        )
    return maps


def _words(name: str, what: str, words: Sequence[str], count: int) -> list[str]:
    if len(words) != count:
        raise InvalidValueError(
            f"{name}: expected {count}, one for each {what} of the weights, got {len(words)}"
        )
    return [str(word) for word in words]


def _label(panel: Axes, queries: list[str], keys: list[str]) -> None:
    """Words on both sides; of very many, every second, third, ..."""
    for axis, words, turned in ((panel.xaxis, keys, 90), (panel.yaxis, queries, 0)):
        places = range(0, len(words), math.ceil(len(words) / _LABELS))
        shown = [words[place] for place in places]
        axis.set_ticks(list(places), shown, fontsize=8, rotation=turned, parse_math=False)
    panel.tick_params(length=0, pad=2)
    for spine in panel.spines.values():
        spine.set_color("0.8")
