"""A whole model with our attention beside the same with torch's: results compared, then timed in turns."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rich.table import Table

from tvm_attention.errors import InvalidValueError
from tvm_attention.interleaved import Contender, interleave

OURS, SDPA = "tvm_attention", "sdpa"  # names of transformers' attention implementations
ALLOWED = 1e-3  # of the results' range, between two float32 models


def side_by_side(
    what: str, calls: Mapping[str, Callable[[], Any]], seconds: float
) -> dict[str, Any]:
    """Seconds of both, their ratio and the largest difference over the range of torch's result.

    Raises InvalidValueError for results that differ.
    """
    ours, sdpa = (calls[name]() for name in (OURS, SDPA))
    difference = float((ours - sdpa).abs().max()) / max(float(sdpa.max() - sdpa.min()), 1e-30)
    if not difference <= ALLOWED:
        raise InvalidValueError(
            f"{what}: expected the results of both within {ALLOWED} of their range, "
            f"got {difference:.3g}"
        )
    rounds = interleave([Contender(n, call) for n, call in calls.items()], seconds, least=5)
    return {
        "seconds": rounds.time(OURS).to_dict(),
        "sdpa": rounds.time(SDPA).to_dict(),
        "ratio": rounds.ratio(SDPA, OURS).to_dict(),
        "difference": difference,
    }


def both(sdpa: Any) -> dict[str, Any]:
    """The same weights, in the same memory, with either attention."""
    shared = {id(x): x for x in (*sdpa.parameters(), *sdpa.buffers())}
    ours = copy.deepcopy(sdpa, shared)
    ours.set_attn_implementation(OURS)
    return {OURS: ours, SDPA: sdpa}


def table(names: tuple[str, str], digits: int, rows: Sequence[Mapping[str, Any]]) -> Table:
    """Rows of :func:`side_by_side`, each under two names of its own."""
    shown = Table(*names, "ours ms", "torch ms", "torch / ours")
    for row in rows:
        median, q1, q3 = (f"{row['ratio'][name]:.{digits}f}" for name in ("median", "q1", "q3"))
        shown.add_row(
            *(str(row[name]) for name in names), f"{row['seconds']['median'] * 1e3:.3g}",
            f"{row['sdpa']['median'] * 1e3:.3g}", f"{median} ({q1}-{q3})",
        )  # fmt: skip
    return shown
