"""Results of selection_regret.py and tuning_quality.py as tables and pictures of the documentation."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from bench.plots import COLOURS, WIDTH
from tvm_attention.report.drawing import svg

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Study = Mapping[str, Any]


def regret_table(study: Study) -> str:
    """Markdown: regret by length class, and the ten workloads with the most."""
    machine = study["machine"]
    lines = [
        f"Regret of selection on {machine['model']} ({machine['target']}), {study['threads']} threads, seed "
        f"{study['seed']}, commit {study['library']['commit'][:12]}, {study['date']}. The same kernel twice "
        f"differs by {study['summary']['noise']:.1%} (median).",
        "",
        "| class | workloads | median | 90 % | worst |",
        "| --- | ---: | ---: | ---: | ---: |",
    ]
    for name, found in study["summary"].items():
        if name != "noise":
            figures = (f"{found[n]:.1%}" for n in ("median", "90 %", "worst"))
            lines.append(f"| {name} | {found['workloads']} | {' | '.join(figures)} |")
    lines += ["", "| workload | picked | regret | best |", "| --- | --- | ---: | --- |"]
    worst = sorted(study["workloads"], key=lambda r: -r["regret"])[:10]
    lines += [
        f"| {r['shape']} | {r['picked']['origin']} | {r['regret']:.1%} | {r['best']['origin']} |"
        for r in worst
    ]
    return "\n".join(lines) + "\n"


def regret_picture(study: Study) -> str:
    """All workloads by regret, as an <svg> element."""

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        regrets = sorted(r["regret"] for r in study["workloads"])
        axes.plot(range(1, len(regrets) + 1), regrets, "o", color=COLOURS[4], markersize=4)
        for limit, what in ((0.03, "median to be below"), (0.15, "worst to be below")):
            axes.axhline(limit, color="#333333", linewidth=0.8, linestyle="--")
            axes.annotate(what, (1, limit), (0, 3), textcoords="offset points", fontsize=8)
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
        axes.set(xlabel="workloads, by regret", ylabel="regret")
        axes.grid(True, axis="y")

    return svg("regret", WIDTH, 3.0, draw)


def search_table(study: Study) -> str:
    """Markdown: when the best was nearly reached, and what the finalists are worth in turns."""
    machine = study["machine"]
    names = list(study["workloads"][0]["reached"])
    lines = [
        f"Searches on {machine['model']} ({machine['target']}), {study['threads']} threads, commit "
        f"{study['library']['commit'][:12]}, {study['date']}. Finalists were timed in turns.",
        "",
        f"| workload | {' | '.join(f'{n} of the best after' for n in names)} | speed of finalists |",
        "| --- | " + "--- | " * len(names) + "--- |",
    ]
    for row in study["workloads"]:
        reached = (_reached_text(row["reached"][n]) for n in names)
        shares = ", ".join(f"{n} {s:.1%}" for n, s in row["share of the best's speed"].items())
        lines.append(f"| {row['name']} ({row['shape']}) | {' | '.join(reached)} | {shares} |")
    return "\n".join(lines) + "\n"


def search_picture(study: Study) -> str:
    """The best so far over trials, as an <svg> element."""

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        for number, row in enumerate(study["workloads"]):
            shares = [p["share"] for p in row["curve"]]
            axes.plot(range(1, len(shares) + 1), shares, drawstyle="steps-post", label=row["name"],
                      color=COLOURS[number % len(COLOURS)], linewidth=1.6)  # fmt: skip
        for share in (0.95, 0.99):
            axes.axhline(share, color="#333333", linewidth=0.8, linestyle="--")
        axes.axvline(24, color="#333333", linewidth=0.8, linestyle=":")
        axes.annotate("24 trials", (24, 0.02), (4, 0), xycoords=("data", "axes fraction"),
                      textcoords="offset points", fontsize=8)  # fmt: skip
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
        axes.set(xlabel="trials", ylabel="best so far, of the best's speed", xscale="log")
        axes.grid(True)
        axes.legend(loc="lower right", frameon=False)

    return svg("searches", WIDTH, 3.4, draw)


def _reached_text(reached: Mapping[str, float] | None) -> str:
    if reached is None:
        return "never"
    return f"{reached['trials']} trials, {reached['minutes']:.1f} min"


STUDIES: dict[str, tuple[Callable[[Study], str], Callable[[Study], str]]] = {
    "selection-regret": (regret_table, regret_picture),
    "tuning-quality": (search_table, search_picture),
}
