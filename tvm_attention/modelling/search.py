"""The search of modelled candidates: an evolving population, each member with its time on several cores.

A measured search learns a cost model since trials are dear and noisy; here a trial is the model itself.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from tvm_attention.modelling.tile_strength import strength
from tvm_attention.schedules import Candidate, DesignSpace, MachineParameters
from tvm_attention.tuning.journal import Trial

PARENTS = 3
DRAWN = 12  # candidates looked at for each that is compiled
STRANGERS = 0.2  # of the candidates are drawn from the whole space
# Of which no model of ours knows the unit. BFMMLA, which serves the first, is one of the vector instructions.
MATRIX, MATRIX_DECODE = "matrix", "matrix_decode"


class ModelledSearch:
    """Proposes candidates for one core, given trials on it. ``seeds`` are tried first."""

    def __init__(
        self, space: DesignSpace, machine: MachineParameters, seeds: Sequence[Candidate], seed: int
    ) -> None:
        unknown = (MATRIX_DECODE,) if machine.bfmmla else (MATRIX, MATRIX_DECODE)
        variants = {v: c for v, c in space.variants.items() if v not in unknown}
        self._space = DesignSpace(variants, space.rule)
        self._machine = machine
        self._random = random.Random(seed)
        fitting = (c for c in seeds if self._space.refusal(c) is None)
        self._seeds = list(dict.fromkeys(fitting))

    def propose(self, done: Sequence[Trial]) -> Candidate | None:
        """The next candidate to model; None when nothing new was found."""
        seen = {t.candidate for t in done}
        for candidate in self._seeds:
            if candidate not in seen:
                return candidate
        best = sorted((t for t in done if t.seconds), key=lambda t: t.seconds or 0.0)[:PARENTS]
        found: dict[Candidate, None] = {}
        for _ in range(DRAWN * 40):
            drawn = self._drawn([t.candidate for t in best])
            if drawn is not None and drawn not in seen:
                found[drawn] = None
            if len(found) == DRAWN:
                break
        # One of the better half: the look at the tiles sees neither caches nor how tasks share out.
        ranked = sorted(found, key=lambda c: -strength(c, self._machine))
        return self._random.choice(ranked[: max(1, len(ranked) // 3)]) if ranked else None

    def _drawn(self, parents: Sequence[Candidate]) -> Candidate | None:
        if not parents or self._random.random() < STRANGERS:
            return self._space.sample(self._random)
        return self._space.mutate(self._random.choice(parents), self._random)
