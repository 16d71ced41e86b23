"""A result as a table: on the terminal with rich, and as the README's Markdown."""

from __future__ import annotations

from dataclasses import dataclass

from rich.console import Console
from rich.table import Table

from bench.results import (
    BEST_PEER,
    OURS,
    Comparison,
    Measured,
    Result,
    WorkloadResult,
    best_peer,
    kind_of,
)

MOST_PEERS = 4  # of more, the first and each workload's fastest are shown
SIZES = ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB"))
NOTE = (
    "A peer's figure is its time over ours, median of rounds (interquartile range): above 1, ours "
    "is faster; the fastest peer is bold."
)


@dataclass(frozen=True, slots=True)
class Cell:
    """A table cell: what counts, what explains it, and whether it is to stand out."""

    text: str
    detail: str = ""
    bold: bool = False


def print_report(result: Result, console: Console) -> None:
    """The table, the geometric means and who was absent."""
    table = Table(title=title(result), caption=NOTE, title_justify="left", caption_justify="left")
    first, *others = headings(result)
    table.add_column(first, overflow="fold")
    for heading in others:
        table.add_column(heading, justify="right", overflow="fold")
    for row in rows(result):
        table.add_row(*map(_terminal_cell, row))
    console.print(table)
    for line in summary_lines(result):
        console.print(line, highlight=False, markup=False)


def markdown(result: Result) -> str:
    """For the README: a sentence on the machine, the table, the geometric means."""
    head = headings(result)
    lines = [
        f"{machine_text(result)}. {NOTE}",
        "",
        _markdown_row(head),
        _markdown_row(["---", *["---:"] * (len(head) - 1)]),
        *(_markdown_row(list(map(_markdown_cell, row))) for row in rows(result)),
        "",
        *(f"- {line}" for line in summary_lines(result)),
    ]
    return "\n".join(lines) + "\n"


def headings(result: Result) -> list[str]:
    """The columns of :func:`rows`."""
    best = ["best peer"] if len(peers(result)) > 1 else []
    float32 = ["ours in float32"] if _in_16_bits(result) else []
    return ["workload", "ours ms", *shown_peers(result), *best, *float32, "of the machine"]


def rows(result: Result) -> list[list[Cell]]:
    """One a workload: our median, peers' times over ours, our share of the machine's best."""
    return [_row(workload, result) for workload in result["workloads"]]


def shown_peers(result: Result) -> list[str]:
    """Those with a column of their own."""
    found = peers(result)
    return found if len(found) <= MOST_PEERS else found[:1]


def peers(result: Result) -> list[str]:
    """Peers in the order measured, absent ones left out."""
    found = (n for w in result["workloads"] for n in (*w["measured"], *w["refused"]) if n != OURS)
    return list(dict.fromkeys(found))


def summary_lines(result: Result) -> list[str]:
    """Geometric means, workloads we lose, absent peers, and what was refused and why."""
    lines = [_comparison_line(name, found) for name, found in result["summary"].items()]
    for kind, summary in result.get("by_kind", {}).items():
        shown = dict.fromkeys([*list(summary)[:1], BEST_PEER])
        lines += [f"{kind}: {_comparison_line(n, summary[n])}" for n in shown if n in summary]
    lines += [f"{name}: absent, {reason}" for name, reason in result["absent"].items()]
    reasons: dict[tuple[str, str], list[str]] = {}
    for workload in result["workloads"]:
        for name, why in workload["refused"].items():
            reasons.setdefault((name, why), []).append(workload["name"])
    return lines + [f"{name} {why} ({', '.join(on)})" for (name, why), on in reasons.items()]


def _comparison_line(name: str, comparison: Comparison) -> str:
    lost = comparison["under_one"]
    return (
        f"{name} / ours: geometric mean {comparison['geometric_mean']:.2f} over "
        f"{comparison['workloads']} workloads, {len(lost)} under 1.0"
        + (f": {', '.join(lost)}" if lost else "")
    )


def title(result: Result) -> str:
    """What was measured, in one line."""
    what = {"attention": "attention alone", "mixed": "Linear, attention, Linear"}[result["mode"]]
    kinds = dict.fromkeys(map(kind_of, result["workloads"])) or {"float32": None}
    threads = f"{result['threads']} thread{'s' if result['threads'] > 1 else ''}"
    return f"Suite {result['suite']}, {what}, {', '.join(kinds)}, {threads}"


def machine_text(result: Result) -> str:
    """The processor, its caches and the versions that matter."""
    machine, library = result["machine"], result["library"]
    sizes = ", ".join(f"{n.upper()} {_size(machine[n])}" for n in ("l1d", "l2", "l3") if machine[n])
    versions = ", ".join(f"{n} {v}" for n, v in result["packages"].items() if n != "tvm-attention")
    commit = library["commit"][:12] + (" with changes" if library["changed"] else "")
    name = machine["model"] or machine["micro_architecture"]
    return (
        f"{title(result)} ({result['pool']}); {name} ({machine['target']}), {machine['cores']} "
        f"cores, {sizes}; {versions}; commit {commit}, {result['date']}"
    )


def _row(workload: WorkloadResult, result: Result) -> list[Cell]:
    measured, best = workload["measured"], best_peer(workload)
    ours = f"{measured[OURS]['seconds']['median'] * 1e3:.3g}" if OURS in measured else "wrong"
    cells = [Cell(workload["name"], workload["shape"]), Cell(ours)]
    for name in shown_peers(result):
        if name in measured:
            cells.append(_ratio_cell(measured[name], bold=name == best))
        else:
            wrong = workload["refused"].get(name, "").startswith("wrong")
            cells.append(Cell("wrong" if wrong else "-"))
    if len(peers(result)) > 1:
        cells.append(Cell("-") if best is None else _best_cell(best, measured[best]))
    if _in_16_bits(result):
        float32 = workload.get("float32")
        cells.append(Cell("-") if float32 is None else Cell(f"{float32['median']:.2f}"))
    return [*cells, _share(workload)]


def _in_16_bits(result: Result) -> bool:
    """Whether there are workloads of ours that float32 was timed beside."""
    return any("float32" in w for w in result["workloads"])


def _best_cell(name: str, measured: Measured) -> Cell:
    ratio = measured["ratio"]["median"]
    return Cell(f"{ratio:.2f}", name)


def _ratio_cell(measured: Measured, bold: bool) -> Cell:
    ratio = measured["ratio"]
    return Cell(f"{ratio['median']:.2f}", f"{ratio['q1']:.2f}-{ratio['q3']:.2f}", bold)


def _share(workload: WorkloadResult) -> Cell:
    ceilings = workload["ceilings"]
    if ceilings is None:
        return Cell("-")
    unit, what = ("GFLOP/s", "FMA") if ceilings["limit"] == "fma" else ("GB/s", "reads")
    detail = f"{ceilings['ours']:.0f} of {ceilings['machine']:.0f} {unit}"
    return Cell(f"{ceilings['fraction']:.0%} {what}", detail)


def _terminal_cell(cell: Cell) -> str:
    text = f"[bold]{cell.text}[/bold]" if cell.bold else cell.text
    return f"{text}\n[dim]{cell.detail}[/dim]" if cell.detail else text


def _markdown_cell(cell: Cell) -> str:
    text = f"**{cell.text}**" if cell.bold else cell.text
    return f"{text} ({cell.detail})" if cell.detail else text


def _markdown_row(cells: list[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _size(count: int) -> str:
    for unit, name in SIZES:
        if count >= unit:
            return f"{count / unit:g} {name}"
    return f"{count} B"
