"""The figures of a run as pictures."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bench.gpu.timing import OURS
from tvm_attention.errors import UnsupportedError


def draw(values: Mapping[str, Any], folder: Path) -> list[Path]:
    """Speed beside the peers', and the tuning, as SVG. Raises UnsupportedError without matplotlib."""
    try:
        import matplotlib
    except ImportError as error:
        raise UnsupportedError("expected the package matplotlib, got none") from error
    matplotlib.use("Agg")
    folder.mkdir(parents=True, exist_ok=True)
    parts = values["parts"]
    return [
        _speed(parts["timing"]["done"], values["device"]["name"], folder / "speed.svg"),
        _search(parts["tuning"]["done"], folder / "tuning.svg"),
    ]


def _speed(timing: Mapping[str, Any], device: str, path: Path) -> Path:
    """Bars: the time of each contender over ours."""
    from matplotlib import pyplot

    names = sorted({n for t in timing.values() for n in t["contenders"]} - {OURS})
    figure, axes = pyplot.subplots(figsize=(10, 1 + 0.5 * max(1, len(timing))))
    height = 0.8 / max(1, len(names))
    for n, name in enumerate(names):
        known = [
            (y, t["contenders"][name])
            for y, t in enumerate(timing.values())
            if name in t["contenders"]
        ]
        axes.barh(
            [y + n * height for y, _ in known],
            [c["ratio"]["median"] for _, c in known],
            height,
            label=name,
        )
    axes.axvline(1.0, color="black", linewidth=0.8)
    axes.set_yticks([y + 0.4 for y in range(len(timing))], list(timing))
    axes.set_xlabel(f"time over ours on {device}: above 1, ours is faster")
    axes.legend(fontsize="small")
    return _saved(figure, path)


def _search(tuning: Mapping[str, Any], path: Path) -> Path:
    """Points: the time of each candidate in the order of the trials."""
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(10, 5))
    series: dict[str, list[float]] = {}
    for unit, found in tuning.items():
        series.setdefault(unit.partition(": ")[0], []).append(found["seconds"])
    for name, seconds in series.items():
        axes.plot([s * 1e3 for s in seconds], marker=".", linewidth=0.5, label=name)
    axes.set(xlabel="candidate", ylabel="ms", yscale="log")
    axes.legend(fontsize="small")
    return _saved(figure, path)


def _saved(figure: Any, path: Path) -> Path:
    from matplotlib import pyplot

    figure.tight_layout()
    figure.savefig(path)
    pyplot.close(figure)
    return path
