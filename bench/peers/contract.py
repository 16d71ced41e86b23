"""What the benchmark asks of every contender, ours included."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from bench.problem import Numbers, Problem
from tvm_attention.errors import UnsupportedError
from tvm_attention.interleaved import Contender
from tvm_attention.workload import AttentionWorkload

HEADS_LAYOUT = "B,H,L,E"
ROWS_LAYOUT = "B,L,H*E"
# Who keeps all scores in memory is not asked for more than this: it would be minutes a call.
MOST_SCORES = 1 << 28


@dataclass(frozen=True, slots=True)
class Prepared:
    """A contender ready to run one problem.

    ``results()`` runs it and gives every array (B, Hq, L, Ev) that is to be checked; where it takes
    an output array, that array is filled with NaN first. ``layout`` is how it takes its inputs;
    each gets its own, converted before timing. ``precision`` is the coarsest format that numbers pass
    through, the workload's dtype if left out. ``source`` is the tuning record, for ours;
    ``memory`` is whatever must live as long as the contender.
    """

    contender: Contender
    results: Callable[[], tuple[Numbers, ...]]
    layout: str = HEADS_LAYOUT
    precision: str = ""
    source: str = ""
    memory: object = None


@dataclass(frozen=True, slots=True)
class Peer:
    """``prepare(problem, threads)`` raises UnsupportedError for a workload it does not compute;
    ``missing()`` says what else than ``modules`` is not there, or None."""

    name: str
    modules: tuple[str, ...]  # what must be installed, by import name
    prepare: Callable[[Problem, int], Prepared]
    missing: Callable[[], str | None] = lambda: None


def require(holds: bool, what: str) -> None:
    """Raises UnsupportedError, saying ``what`` is not computed, unless it holds."""
    if not holds:
        raise UnsupportedError(what)


def hides_keys(workload: AttentionWorkload) -> bool:
    """Whether some query may not see some key."""
    w = workload
    return bool(w.causal or w.window or w.ragged or w.mask)


def require_room_for_mask(problem: Problem, name: str) -> None:
    """Raises UnsupportedError where a mask of all queries and keys would be as large as that."""
    rows, keys = problem.scores[2:]
    small = not hides_keys(problem.workload) or rows * keys <= MOST_SCORES
    require(small, f"{name} makes a mask of all pairs: not measured for {rows} x {keys} of them")


def require_room_for_scores(problem: Problem, name: str) -> None:
    """Raises UnsupportedError where all scores together are too many to be kept."""
    batch, heads, rows, keys = problem.scores
    count = batch * heads * rows * keys
    require(count <= MOST_SCORES, f"{name} keeps all scores: not measured for {count} of them")
