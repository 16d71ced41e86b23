"""What the benchmark asks of every contender, ours included."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from bench.problem import Float32, Problem
from tvm_attention.interleaved import Contender

HEADS_LAYOUT = "B,H,L,E"
ROWS_LAYOUT = "B,L,H*E"


@dataclass(frozen=True, slots=True)
class Prepared:
    """A contender ready to run one problem.

    ``results()`` runs it and gives every array (B, Hq, L, Ev) that is to be checked; where it takes
    an output array, that array is filled with NaN first. ``layout`` is how it takes its inputs;
    each gets its own, converted before timing. ``source`` is the tuning record, for ours;
    ``memory`` is whatever must live as long as the contender.
    """

    contender: Contender
    results: Callable[[], tuple[Float32, ...]]
    layout: str = HEADS_LAYOUT
    source: str = ""
    memory: object = None


@dataclass(frozen=True, slots=True)
class Peer:
    """``prepare(problem, threads)`` raises UnsupportedError for a workload it does not compute."""

    name: str
    modules: tuple[str, ...]  # what must be installed, by import name
    prepare: Callable[[Problem, int], Prepared]
