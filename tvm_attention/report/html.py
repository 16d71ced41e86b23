"""Pieces of HTML; every text that comes from a file or the machine is escaped here."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape

__all__ = ["Cell", "details", "escape", "figure", "section", "table"]


@dataclass(frozen=True, slots=True)
class Cell:
    """A table's cell; ``kind`` is a class of the style sheet: "number", "better", "worse", "long"
    (may be broken into lines) or none."""

    text: str
    kind: str = ""


def table(headings: Sequence[str], rows: Iterable[Sequence[Cell | str]]) -> str:
    """A table; a column is right-aligned where its cells are numbers."""
    body = [[c if isinstance(c, Cell) else Cell(c) for c in row] for row in rows]
    numbers = [bool(body) and "number" in body[0][n].kind for n in range(len(headings))]
    head = "".join(
        f"<th{' class=number' if number else ''}>{escape(text)}</th>"
        for text, number in zip(headings, numbers, strict=True)
    )
    lines = [f"<tr>{''.join(map(_cell, row))}</tr>" for row in body]
    return f'<div class="wide"><table><tr>{head}</tr>\n' + "\n".join(lines) + "\n</table></div>"


def _cell(cell: Cell) -> str:
    kind = f' class="{escape(cell.kind)}"' if cell.kind else ""
    return f"<td{kind}>{escape(cell.text)}</td>"


def section(name: str, title: str, *parts: str) -> str:
    """A part of the page that can be linked to."""
    return f'<section id="{name}">\n<h2>{escape(title)}</h2>\n' + "\n".join(parts) + "\n</section>"


def details(summary: str, content: str) -> str:
    """What is shown when it is asked for."""
    return f"<details><summary>{escape(summary)}</summary>\n{content}\n</details>"


def figure(svg: str, caption: str) -> str:
    """A picture, and what it shows in words."""
    return f"<figure>{svg}<figcaption>{escape(caption)}</figcaption></figure>"
