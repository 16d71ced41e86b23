"""A result as a table: on the terminal with rich, and as the README's Markdown."""

from __future__ import annotations

from dataclasses import dataclass

from rich.console import Console
from rich.table import Table

from bench.results import OURS, Measured, Result, WorkloadResult, best_peer

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
    return ["workload", "ours ms", *peers(result), "of the machine"]


def rows(result: Result) -> list[list[Cell]]:
    """One a workload: our median, each peer's time over ours, our share of the machine's best."""
    return [_row(workload, peers(result)) for workload in result["workloads"]]


def peers(result: Result) -> list[str]:
    """Peers in the order measured, absent ones left out."""
    found = (n for w in result["workloads"] for n in (*w["measured"], *w["refused"]) if n != OURS)
    return list(dict.fromkeys(found))


def summary_lines(result: Result) -> list[str]:
    """Geometric means, workloads we lose, absent peers, and what was refused and why."""
    lines = []
    for name, comparison in result["summary"].items():
        lost = comparison["under_one"]
        lines.append(
            f"{name} / ours: geometric mean {comparison['geometric_mean']:.2f} over "
            f"{comparison['workloads']} workloads, {len(lost)} under 1.0"
            + (f": {', '.join(lost)}" if lost else "")
        )
    lines += [f"{name}: absent, {reason}" for name, reason in result["absent"].items()]
    for workload in result["workloads"]:
        lines += [f"{workload['name']}: {n} {why}" for n, why in workload["refused"].items()]
    return lines


def title(result: Result) -> str:
    """What was measured, in one line."""
    what = {"attention": "attention alone", "mixed": "Linear, attention, Linear"}[result["mode"]]
    return f"Suite {result['suite']}, {what}, float32, {result['threads']} threads"


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


def _row(workload: WorkloadResult, shown: list[str]) -> list[Cell]:
    measured, best = workload["measured"], best_peer(workload)
    ours = f"{measured[OURS]['seconds']['median'] * 1e3:.3g}" if OURS in measured else "wrong"
    cells = [Cell(workload["name"], workload["shape"]), Cell(ours)]
    for name in shown:
        if name in measured:
            cells.append(_ratio_cell(measured[name], bold=name == best))
        else:
            wrong = workload["refused"].get(name, "").startswith("wrong")
            cells.append(Cell("wrong" if wrong else "-"))
    return [*cells, _share(workload)]


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
