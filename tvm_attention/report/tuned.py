"""The section on searches: the best so far, and which decisions mattered."""

from __future__ import annotations

from collections import Counter

from tvm_attention.quantities import counted, seconds_text
from tvm_attention.report.contents import Contents
from tvm_attention.report.html import escape, figure, section
from tvm_attention.report.influence import best_so_far, influences
from tvm_attention.report.search_figure import search_figure
from tvm_attention.suites import SUITES, shape_text
from tvm_attention.tuning.searches import Search

MOST = 16  # figures; each takes some 40 kB

_NAMES = {w: name for key in ("demo", "shipping", "core") for name, w in SUITES[key].items()}


def tuning_section(contents: Contents) -> str:
    """A figure for each search, those of the present expression first."""
    title = "Tuning"
    found = contents.searches
    if not found:
        nothing = (
            "No search has left a journal here: <code>tvm-attention tune --suite shipping</code>."
        )
        return section("tuning", title, f"<p>{nothing}</p>")
    intro = (
        "Left, each trial of a search and the best so far. Right, which share of the variation of the "
        "logarithm of time a decision's values account for, among trials of the best one's variant, "
        "corrected for chance; the variant itself over all trials. A search changes decisions together, so "
        "that shares overlap and are no experiment."
    )
    parts = [_search(number, search) for number, search in enumerate(found[:MOST])]
    left = len(found) - len(parts)
    if left:
        parts.append(f'<p class="quiet">Searches not shown: {left}.</p>')
    return section("tuning", title, f"<p>{escape(intro)}</p>", *parts)


def _search(number: int, search: Search) -> str:
    picture = search_figure(f"search{number}", search, influences(search.trials))
    return f"<h3>{escape(_title(search))}</h3>" + figure(picture, _caption(search))


def _title(search: Search) -> str:
    if search.workload is None:
        return f"a search of an earlier version, {search.path.name}"
    shape, name = shape_text(search.workload), _NAMES.get(search.workload)
    dtype = " float32" if search.workload.dtype == "float32" else ""  # others are in the text
    return f"{f'{name}: ' if name else ''}{shape}{dtype}"


def _caption(search: Search) -> str:
    best = best_so_far(search.trials)[-1]
    first = search.trials[0].seconds
    said = [f"target {search.target}", counted(len(search.trials), "trial")]
    if search.threads is not None:
        said.append(counted(search.threads, "thread"))
    if best is not None:
        said.append(f"best {seconds_text(best)}")
        if first is not None:
            said.append(f"{first / best:.2f} times as fast as the first")
    failed = Counter(t.error for t in search.trials if t.seconds is None)
    said += [f"{count} failed: {reason}" for reason, count in failed.most_common(3)]
    said.append(f"ended: {search.ended}" if search.ended else "not ended")
    if not search.current:
        said.append("of an expression that has changed since")
    return "; ".join(said)
