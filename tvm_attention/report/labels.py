"""Names next to points, where they cover neither each other nor other points."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_POINT = 4.0  # half of a marker's width
_SIZE = 7  # of the letters, in points
_WIDE, _HIGH = 0.58, 1.15  # of a letter, in sizes

_PAPER = {"facecolor": "white", "edgecolor": "none", "pad": 0.3, "alpha": 0.85}

Box = tuple[float, float, float, float]


def label_points(
    axes: Axes,
    points: Sequence[tuple[float, float, str]],
    dpi: float = 72.0,
    avoid: Sequence[tuple[float, float]] = (),
) -> None:
    """Writes the name of each (x, y, name) beside it, inside the axes and not over the places to
    ``avoid``; those whose markers cover each other share a line. Axes must have their final limits and
    place."""
    scale = dpi / 72.0
    markers = axes.transData.transform([(x, y) for x, y, _ in points]).tolist()
    pixels, names = _together(markers, [name for _, _, name in points], _POINT * scale)
    taken = [_around(x, y, _POINT * scale, _POINT * scale) for x, y in markers]
    if avoid:
        taken += [_around(x, y, 1.0, 1.0) for x, y in axes.transData.transform(avoid)]
    back = axes.transData.inverted()
    edges = axes.bbox.extents
    for (x, y), name in zip(pixels, names, strict=True):
        wide, high = _WIDE * _SIZE * len(name) * scale, _HIGH * _SIZE * scale
        spots = [s for s in _spots(x, y, wide, high, 7 * scale) if _inside(s, edges)]
        spots = spots or list(_spots(x, y, wide, high, 7 * scale))
        chosen = next((s for s in spots if not any(_meet(s, t) for t in taken)), None)
        if chosen is None:  # no room: on top of as little as can be
            chosen = min(spots, key=lambda s: sum(_meet(s, t) for t in taken))
        taken.append(chosen)
        centre = ((chosen[0] + chosen[2]) / 2, (chosen[1] + chosen[3]) / 2)
        far = abs(centre[0] - x) - wide / 2 > 12 * scale or abs(centre[1] - y) > high * 1.6
        axes.annotate(
            name, xy=tuple(back.transform((x, y))),
            xytext=tuple(back.transform(centre)), ha="center", va="center",
            fontsize=_SIZE, color="#333333", bbox=_PAPER, arrowprops=_leader() if far else None,
        )  # fmt: skip


def _together(
    places: Sequence[tuple[float, float]], names: Sequence[str], distance: float
) -> tuple[list[tuple[float, float]], list[str]]:
    """Places that are further apart than that, each with the names of all that are there."""
    kept: list[tuple[float, float]] = []
    joined: list[list[str]] = []
    for (x, y), name in zip(places, names, strict=True):
        near = (n for n, (a, b) in enumerate(kept) if max(abs(a - x), abs(b - y)) <= distance)
        there = next(near, None)
        if there is None:
            kept.append((x, y))
            joined.append([name])
        else:
            joined[there].append(name)
    return kept, [", ".join(group) for group in joined]


def _leader() -> dict[str, Any]:
    return {"arrowstyle": "-", "color": "#9aa0a6", "linewidth": 0.5, "shrinkA": 0, "shrinkB": 3}


def _spots(x: float, y: float, wide: float, high: float, apart: float) -> Iterable[Box]:
    """Places for a text, those nearest to its point first; beside it, ``apart`` from it."""
    side = wide / 2 + apart
    yield from (_around(x + dx, y, wide / 2, high / 2) for dx in (side, -side))
    for distance in (0.9, 1.8, 2.8, 4.0, 5.5):
        up = high * distance
        for dx, dy in ((0, up), (0, -up), (side, up), (side, -up), (-side, up), (-side, -up)):
            yield _around(x + dx, y + dy, wide / 2, high / 2)


def _around(x: float, y: float, half_width: float, half_height: float) -> Box:
    return (x - half_width, y - half_height, x + half_width, y + half_height)


def _inside(a: Box, b: Box) -> bool:
    return a[0] >= b[0] and a[1] >= b[1] and a[2] <= b[2] and a[3] <= b[3]


def _meet(a: Box, b: Box) -> bool:
    return a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]
