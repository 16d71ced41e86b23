"""Results that have a form of their own as Markdown tables: of whole models, and of torch's operators."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any


def generate(result: Mapping[str, Any]) -> str:
    """Of bench_generate.py: each phase and context, our time and torch's over ours."""
    model = result["model"]
    what = (
        f"{model['layers']} layers of {model['hidden']}, heads of {model['head_dim']}, "
        f"{model['group']} query heads a key-value head, float32, {model['tokens']} tokens generated"
    )
    rows = (
        (
            row["phase"], str(row["context"]), _milliseconds(row["seconds"]["median"]),
            _ratio(row["ratio"]),
        )
        for row in result["cases"]
    )  # fmt: skip
    return _page(result, what, ("phase", "context", "ours ms", "torch / ours"), rows)


def families(result: Mapping[str, Any]) -> str:
    """Of bench_families.py: each family and phase, our time and that of transformers' attention over ours."""
    what = (
        f"Two layers of random weights, float32; prompts of {result['context']} tokens (Whisper: half a "
        f"minute of sound, BERT: at most 512 tokens), {result['tokens']} tokens generated"
    )
    rows = (
        (
            row["family"], row["phase"], _milliseconds(row["seconds"]["median"]),
            f"{_ratio(row['ratio'])} {row['beside']}",
        )
        for row in result["cases"]
    )  # fmt: skip
    return _page(result, what, ("family", "phase", "ours ms", "other / ours"), rows)


def operator(result: Mapping[str, Any]) -> str:
    """Of bench_operator.py: each call through torch's dispatcher, and what that adds to the direct one."""
    what = f"query, key and value of {'x'.join(map(str, result['shape']))}, float32"
    rows = (
        (
            row["case"], _microseconds(row["direct"]["median"]),
            f"{_microseconds(row['overhead']['median'])} ({_microseconds(row['overhead']['q1'])}-"
            f"{_microseconds(row['overhead']['q3'])})",
        )
        for row in result["cases"]
    )  # fmt: skip
    return _page(result, what, ("call", "direct us", "operator adds us"), rows)


def _page(
    result: Mapping[str, Any], what: str, head: Sequence[str], rows: Iterable[Sequence[str]]
) -> str:
    machine, library = result["machine"], result["library"]
    commit = library["commit"][:12] + (" with changes" if library["changed"] else "")
    where = (
        f"{machine['model'] or machine['micro_architecture']} ({machine['target']}), "
        f"{result['threads']} threads, torch {result['packages']['torch']}; commit {commit}, "
        f"{result['date']}"
    )
    dashes = ("---", *["---:"] * (len(head) - 1))
    lines = [f"| {' | '.join(cells)} |" for cells in (head, dashes, *rows)]
    return "\n".join([f"{what}; {where}. Medians (quartiles).", "", *lines]) + "\n"


def _ratio(spread: Mapping[str, float]) -> str:
    return f"{spread['median']:.2f} ({spread['q1']:.2f}-{spread['q3']:.2f})"


def _milliseconds(seconds: float) -> str:
    return f"{seconds * 1e3:.0f}" if seconds >= 0.1 else f"{seconds * 1e3:.3g}"


def _microseconds(seconds: float) -> str:
    return f"{seconds * 1e6:.1f}"
