"""mkdocs's hook: pages that are files of the repository, and committed results as tables."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from bench import plots, results, studies, tables
from bench.report import markdown
from bench.results import OURS, Result

MIXED = "core-mixed"
# Shown where they have been measured.
SUITES = {
    "core": "Every peer, suite core",
    "core-1-thread": "One thread",
    "decode": "Decoding",
    "masked": "Masks",
    "lowprec": "16 bits",
    "long": "Long sequences",
}
OTHERS = {"options": "cases"}
MODEL, FAMILIES = "generate", "families"
OWN_FORMS = {
    MODEL: tables.generate,
    FAMILIES: tables.families,
    "operator": tables.operator,
}
ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "bench" / "results"
PAGES = {"README.md": "index.md", "CONTRIBUTING.md": "contributing.md"}
_ROLE = re.compile(r":(?:func|class|meth|attr|mod):(?=<code>)")


def on_page_markdown(written: str, /, **_: object) -> str:
    """Puts a file of the repository where a line is {{ file NAME }}, the table of NAME.json where it is
    {{ results NAME }}, its pictures for {{ pictures NAME }}, all suites that were measured for
    {{ suites }}, those of a folder of another machine's for {{ suites FOLDER }}, a study's picture and
    tables for {{ study NAME }}, and what a peer computed faster for {{ losses }}."""
    text = re.sub(r"^{{ file (\S+) }}$", lambda m: _file(m[1]), written, flags=re.M)
    text = re.sub(r"^{{ results (\S+) }}$", lambda m: _table(m[1]), text, flags=re.M)
    text = re.sub(r"^{{ pictures (\S+) }}$", lambda m: pictures(m[1]), text, flags=re.M)
    text = re.sub(r"^{{ suites(?: (\S+))? }}$", lambda m: suites(m[1]), text, flags=re.M)
    text = re.sub(r"^{{ study (\S+) }}$", lambda m: study(m[1]), text, flags=re.M)
    return re.sub(r"^{{ losses }}$", lambda _: losses(), text, flags=re.M)


def on_page_content(html: str, **_: object) -> str:
    """Docstrings name functions in the way of Sphinx; here their names alone are shown."""
    return _ROLE.sub("", html)


def suites(folder: str | None = None) -> str:
    """A section with pictures and the table of each suite that there are results of."""
    behind = f", {folder}" if folder else ""  # a heading is a place to link to
    return "\n".join(
        f"### {SUITES[Path(name).name]}{behind}\n\n{pictures(name)}\n\n{_table(name)}"
        for name in _measured(folder)
    )


def _measured(folder: str | None) -> list[str]:
    """Suites with results, by their path below those."""
    names = [f"{folder}/{name}" if folder else name for name in SUITES]
    return [name for name in names if _path(name).is_file()]


def study(name: str) -> str:
    """Nothing where there is no result of it."""
    if not _path(name).is_file():
        return ""
    table_of, picture_of = studies.STUDIES[name]
    found = _json(name)
    return f"{_picture(picture_of(found))}\n\n{table_of(found)}"


def pictures(name: str) -> str:
    """Those of a result, drawn now."""
    drawn = (picture.svg(name) for picture in plots.pictures(_read(name)))
    return "\n\n".join(map(_picture, drawn))


def _picture(svg: str) -> str:
    """As wide as the page at most, and without blank lines, which end a block of HTML in Markdown."""
    fitted = re.sub(r"\n\s*\n", "\n", svg).replace("<svg", "<svg style='max-width:100%'", 1)
    return f"<div class='picture'>{fitted}</div>"


def losses() -> str:
    """A Markdown list of what a peer computed faster, with the peer's time over ours."""
    alone = list(dict.fromkeys(f"{x}, alone" for name in _measured(None) for x in _losses(name)))
    alone += [
        f"{line}, alone, on {folder.name}"
        for folder in sorted(x for x in RESULTS.iterdir() if x.is_dir())
        for name in _measured(folder.name)
        for line in _losses(name)
    ]
    mixed = [f"{line}, in a torch program" for line in _losses(MIXED)]
    others = [line for name, rows in OTHERS.items() for line in _losses_to_torch(name, rows)]
    models = [*_losses_of_a_model(), *_losses_of_families()]
    lines = [f"- {line}" for line in (*alone, *mixed, *others, *models)]
    return "\n".join(lines) or "In the committed results no peer was faster anywhere."


def _file(name: str) -> str:
    """A file of the repository, its links to others being to their pages."""
    text = (ROOT / name).read_text(encoding="utf-8")
    for other, page in (*PAGES.items(), ("docs/", "")):
        text = text.replace(f"]({other}", f"]({page}")
    return text


def _losses(name: str) -> Iterator[str]:
    for one in _read(name)["workloads"]:
        for peer, measured in one["measured"].items():
            if peer != OURS and measured["ratio"]["median"] < 1:
                yield f"{one['name']} ({one['shape']}): {peer}, {measured['ratio']['median']:.2f}"


def _losses_of_a_model() -> Iterator[str]:
    for row in _json(MODEL)["cases"]:
        if (ratio := row["ratio"]["median"]) < 1:
            yield f"{row['phase']} at {row['context']} tokens of a whole model: torch, {ratio:.2f}"


def _losses_of_families() -> Iterator[str]:
    for row in _json(FAMILIES)["cases"] if _path(FAMILIES).is_file() else ():
        if (ratio := row["ratio"]["median"]) < 1:
            yield f"{row['phase']} of {row['family']}: {row['beside']}, {ratio:.2f}"


def _losses_to_torch(name: str, rows: str) -> Iterator[str]:
    """Of the results that have a form of their own."""
    if not _path(name).is_file():
        return
    for row in _json(name)[rows]:
        if (ratio := row.get("torch")) and ratio["median"] < 1:
            what = row.get("case") or f"{row['workload']} ({row['shape']}) in {row['dtype']}"
            yield f"{what}: torch, {ratio['median']:.2f}"


def _path(name: str) -> Path:
    return RESULTS / f"{name}.json"


def _table(name: str) -> str:
    if name == FAMILIES and not _path(name).is_file():
        return ""
    if name in OWN_FORMS:
        return OWN_FORMS[name](_json(name))
    return markdown(_read(name))


def _json(name: str) -> Any:
    return json.loads(_path(name).read_text(encoding="utf-8"))


def _read(name: str) -> Result:
    return results.read(_path(name))
