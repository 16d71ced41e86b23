"""A whole model with our attention beside the same with torch's: results compared, then timed in turns."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

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
