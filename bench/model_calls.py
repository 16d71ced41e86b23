"""A whole model with our attention beside the same with another: results compared, then timed in turns."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from rich.table import Table

from tvm_attention.errors import InvalidValueError
from tvm_attention.interleaved import Contender, interleave

OURS, SDPA, EAGER = (
    "tvm_attention",
    "sdpa",
    "eager",
)  # transformers' names of attention implementations
ALLOWED = 1e-3  # of the results' range, between two float32 models
LEAST_ROUNDS = 3  # a long prompt takes seconds


def side_by_side(
    what: str, calls: Mapping[str, Callable[[], Any]], seconds: float
) -> dict[str, Any]:
    """Seconds of ours and of the attention it is beside, the ratio, and the largest difference over the
    range of the latter's result.

    Raises InvalidValueError for results that differ: tokens must be the same.
    """
    (other,) = (name for name in calls if name != OURS)
    ours, expected = calls[OURS](), calls[other]()
    difference = _difference(ours, expected) if ours.shape == expected.shape else math.inf
    if not difference <= (ALLOWED if expected.is_floating_point() else 0):
        raise InvalidValueError(
            f"{what}: expected the results of both within {ALLOWED} of their range, and the same "
            f"tokens, got {difference:.3g}"
        )
    contenders = [Contender(n, call) for n, call in calls.items()]
    rounds = interleave(contenders, seconds, least=LEAST_ROUNDS)
    return {
        "seconds": rounds.time(OURS).to_dict(),
        "beside": other,
        "other": rounds.time(other).to_dict(),
        "ratio": rounds.ratio(other, OURS).to_dict(),
        "difference": difference,
    }


def _difference(ours: torch.Tensor, expected: torch.Tensor) -> float:
    """The largest, over the range of what is expected."""
    span = float(expected.max() - expected.min())
    return float((ours - expected).abs().max()) / max(span, 1e-30)


def both(other: Any) -> dict[str, Any]:
    """The same weights, in the same memory, with either attention."""
    shared = {id(x): x for x in (*other.parameters(), *other.buffers())}
    ours = copy.deepcopy(other, shared)
    ours.set_attn_implementation(OURS)
    return {OURS: ours, other.config._attn_implementation: other}


def line(names: Sequence[str], row: Mapping[str, Any]) -> str:
    """A row of :func:`side_by_side` in short."""
    what = " ".join(str(row[name]) for name in names)
    times = f"{_milliseconds(row['seconds'])} ms, {row['beside']} {_milliseconds(row['other'])} ms"
    return f"{what}: {times}, ratio {row['ratio']['median']:.3f}"


def table(names: Sequence[str], digits: int, rows: Sequence[Mapping[str, Any]]) -> Table:
    """Rows of :func:`side_by_side`, each under names of its own."""
    shown = Table(*names, "ours ms", "beside", "its ms", "its time / ours")
    for row in rows:
        median, q1, q3 = (f"{row['ratio'][name]:.{digits}f}" for name in ("median", "q1", "q3"))
        shown.add_row(
            *(str(row[name]) for name in names), _milliseconds(row["seconds"]),
            row["beside"], _milliseconds(row["other"]), f"{median} ({q1}-{q3})",
        )  # fmt: skip
    return shown


def _milliseconds(seconds: Mapping[str, float]) -> str:
    return f"{seconds['median'] * 1e3:.3g}"
