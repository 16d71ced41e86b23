"""What a search's trials say: the best so far, and which decisions made the difference."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tvm_attention.tuning.journal import Trial

VARIANT = "variant"
_LEAST = 2  # trials more than values, below which nothing can be told


@dataclass(frozen=True, slots=True)
class Influence:
    """A decision, and which share (0 to 1) of the variation of log(seconds) its values account for."""

    decision: str
    share: float


def best_so_far(trials: Iterable[Trial]) -> list[float | None]:
    """After each trial the seconds of the best one; None before the first that could be measured."""
    best: float | None = None
    found = []
    for trial in trials:
        if trial.seconds is not None and (best is None or trial.seconds < best):
            best = trial.seconds
        found.append(best)
    return found


def influences(trials: Iterable[Trial]) -> list[Influence]:
    """The variant over all measured trials, then the decisions over those of the best one's variant,
    which alone has them, the most influential first. What had one value only is left out.

    Shares are corrected for what as many values would account for by chance (epsilon squared of a
    one-way analysis of variance). They overlap where a search changed decisions together.
    """
    measured = [t for t in trials if t.seconds is not None]
    if not measured:
        return []
    best = min(measured, key=lambda t: t.seconds or math.inf)
    found = {VARIANT: _share([t.candidate.variant for t in measured], _logs(measured))}
    alike = [t for t in measured if t.candidate.variant == best.candidate.variant]
    decided = [dict(t.candidate.decisions) for t in alike]
    for name in decided[0]:
        found[name] = _share([d.get(name) for d in decided], _logs(alike))
    known = [Influence(name, share) for name, share in found.items() if share is not None]
    return sorted(known, key=lambda i: -i.share)


def _logs(trials: Sequence[Trial]) -> list[float]:
    return [math.log(t.seconds) for t in trials if t.seconds is not None]


def _share(values: Sequence[object], results: Sequence[float]) -> float | None:
    groups: dict[object, list[float]] = defaultdict(list)
    for value, result in zip(values, results, strict=True):
        groups[value].append(result)
    freedom = len(results) - len(groups)
    if len(groups) < 2 or freedom < _LEAST:
        return None
    mean = sum(results) / len(results)
    whole = sum((r - mean) ** 2 for r in results)
    within = sum((r - sum(g) / len(g)) ** 2 for g in groups.values() for r in g)
    if not whole > 0:
        return None
    by_chance = (len(groups) - 1) * within / freedom
    return min(1.0, max(0.0, (whole - within - by_chance) / whole))
