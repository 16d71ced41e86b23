"""Whether a contender's results are attention: each compared with float64 before it is timed."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from bench.peers.contract import Prepared
from bench.problem import Problem
from bench.results import OURS
from tvm_attention.accuracy import ROUNDINGS, Accuracy, Expectation
from tvm_attention.errors import UnsupportedError

# The number of roundings of the largest result up to which a result counts as computed in a format. A
# result of zeros is 256 bfloat16 roundings off. Blocks of 8 bits (q8_0) have steps like bfloat16's.
ALLOWED = {"float32": 200.0, "float16": 32.0, "bfloat16": 8.0, "q8_0": 8.0}
UNITS = {**ROUNDINGS, "q8_0": 2.0**-8}

Prepare = Callable[[Problem, int], Prepared]


@dataclass(frozen=True, slots=True)
class Checked:
    """An accuracy, and the format that was computed in."""

    accuracy: Accuracy
    precision: str

    @property
    def roundings(self) -> float:
        """The largest error in roundings of the largest result."""
        return self.accuracy.max_error / (UNITS[self.precision] * self.accuracy.largest)

    def holds(self, ours: bool) -> bool:
        """Ours is held to the library's own bound as well. Never for a NaN."""
        return self.roundings <= ALLOWED[self.precision] and (self.accuracy.holds or not ours)


@dataclass(frozen=True, slots=True)
class Admitted:
    """Those who compute a problem right, how accurate they are, and why others are refused."""

    prepared: Mapping[str, Prepared]
    checked: Mapping[str, Checked]
    refused: Mapping[str, str]


def admit(problem: Problem, entrants: Mapping[str, Prepare], threads: int) -> Admitted:
    """Prepare everyone, and compare their results."""
    prepared: dict[str, Prepared] = {}
    checked: dict[str, Checked] = {}
    refused: dict[str, str] = {}
    expectation = problem.expectation()
    for name, prepare in entrants.items():
        try:
            entrant = prepare(problem, threads)
        except UnsupportedError as error:
            refused[name] = f"not supported: {error}"
            continue
        found = check(problem, entrant, expectation)
        if found.holds(ours=name == OURS):
            prepared[name], checked[name] = entrant, found
        else:
            worst = found.accuracy.max_error
            refused[name] = f"wrong: error {worst:.3g}, {found.roundings:.3g} roundings"
    return Admitted(prepared, checked, refused)


def check(problem: Problem, entrant: Prepared, expectation: Expectation) -> Checked:
    """The worst of all results an entrant gives; a NaN is the worst."""
    found = [expectation.accuracy(r) for r in entrant.results()]
    worst = max(found, key=lambda a: (math.isnan(a.max_error), a.max_error))
    return Checked(worst, entrant.precision or problem.workload.dtype)
