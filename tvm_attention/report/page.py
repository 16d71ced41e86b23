"""The report as one HTML page that loads nothing."""

from __future__ import annotations

from collections.abc import Callable
from importlib import resources

from tvm_attention.quantities import counted, size_text
from tvm_attention.report.contents import Contents
from tvm_attention.report.html import Cell, details, escape, section, table
from tvm_attention.report.measured import roofline_section, speed_section
from tvm_attention.report.tuned import tuning_section
from tvm_attention.runtime import Explanation

# Not even by mistake, or by a name in a file that was read: a browser is told to load nothing.
_POLICY = "default-src 'none'; style-src 'unsafe-inline'"

Advance = Callable[[str], None]


def page(contents: Contents, made: str, advance: Advance = lambda _: None) -> str:
    """The whole page. ``made`` says when and by what, ``advance`` is told of each part as it is begun.

    Raises UnsupportedError without matplotlib.
    """
    sections = {}
    for name, maker in _MAKERS.items():
        advance(name)
        sections[name] = maker(contents)
    style = resources.files("tvm_attention.report").joinpath("page.css").read_text(encoding="utf-8")
    model = contents.target.model or contents.target.micro_architecture
    links = "".join(f'<a href="#{name}">{name}</a>' for name in _MAKERS)
    return "\n".join(
        [
            '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">',
            f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>tvm_attention on {escape(model)}</title>\n<style>\n{style}</style>\n</head>\n<body>",
            f"<h1>tvm_attention on {escape(model)}</h1>",
            f'<p class="quiet">{escape(made)}</p>\n<nav>{links}</nav>',
            *sections.values(),
            "</body>\n</html>\n",
        ]
    )


def _hardware(contents: Contents) -> str:
    target = contents.target
    caches = (("L1 data", target.l1d), ("L2", target.l2), ("L3", target.l3))
    rows: list[tuple[str, Cell | str]] = [
        ("processor", target.model or "unknown"),
        ("target", f"{target.name} (instruction-set level {target.isa})"),
        ("cores", f"{target.cores} that this process may use"),
        *((name, size_text(size) if size else "unknown") for name, size in caches),
        ("features", Cell(", ".join(sorted(target.features)), "long")),
    ]
    return section("hardware", "Hardware", table(("", "of this machine"), rows))


def _records(contents: Contents) -> str:
    found = contents.explanations
    tuned = sum(e.source.record is not None for e in found.values())
    intro = (
        f"Which kernel this machine gets for {counted(len(found), 'workload')}: {tuned} by a tuning "
        f"record, {len(found) - tuned} by the default schedule."
    )
    rows = table(
        ("workload", "taken", "variant", "over default", "tuned on", "threads", "date"),
        (_record(name, explanation) for name, explanation in found.items()),
    )
    reasons = details(
        "every record considered, and why it was refused or taken",
        "\n".join(f"<h3>{escape(n)}</h3><pre>{escape(str(e))}</pre>" for n, e in found.items()),
    )
    return section("records", "Records in use", f"<p>{escape(intro)}</p>", rows, reasons)


def _record(name: str, explanation: Explanation) -> tuple[Cell | str, ...]:
    source, record = explanation.source, explanation.source.record
    if record is None:
        return (
            name,
            source.rung,
            source.candidate.variant,
            Cell("-", "number"),
            "-",
            Cell("-", "number"),
            "-",
        )
    return (
        name,
        f"{source.kind} ({source.rung})",
        source.candidate.variant,
        Cell(f"{1 / record.ratio:.2f}x", "number"),
        f"{record.provenance['on']}, {record.provenance['trials']} trials",
        Cell(str(record.threads), "number"),
        record.date,
    )


_MAKERS: dict[str, Callable[[Contents], str]] = {
    "hardware": _hardware,
    "records": _records,
    "roofline": roofline_section,
    "speed": speed_section,
    "tuning": tuning_section,
}
PARTS = tuple(_MAKERS)
