"""A point of a design space, and the space itself."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import product


@dataclass(frozen=True, slots=True)
class Candidate:
    """One way to compute a workload: the variant of the expression and every tile decision by name.

    It is all that a tuning record needs to rebuild a kernel: the schedule is a function of it.
    """

    variant: str
    decisions: tuple[tuple[str, int], ...]

    @classmethod
    def of(cls, variant: str, decisions: Mapping[str, int]) -> Candidate:
        return cls(variant, tuple(sorted(decisions.items())))

    def __getitem__(self, name: str) -> int:
        return dict(self.decisions)[name]

    def replace(self, **changes: int) -> Candidate:
        return Candidate.of(self.variant, {**dict(self.decisions), **changes})

    def __str__(self) -> str:
        return f"{self.variant} " + " ".join(f"{n}={v}" for n, v in self.decisions)


Choices = Mapping[str, tuple[int, ...]]


@dataclass(frozen=True)
class DesignSpace:
    """Which values each decision of each variant may take, and which combinations are refused."""

    variants: Mapping[str, Choices]
    rule: Callable[[Candidate], str | None]

    def refusal(self, candidate: Candidate) -> str | None:
        """Why a candidate is not in this space; None when it is."""
        choices = self.variants.get(candidate.variant)
        if choices is None:
            return f"variant {candidate.variant!r} does not serve this workload"
        values = dict(candidate.decisions)
        if values.keys() != choices.keys():
            return f"expected decisions {sorted(choices)}, got {sorted(values)}"
        for name, value in values.items():
            if value not in choices[name]:
                return f"{name}={value} is not one of {choices[name]}"
        return self.rule(candidate)

    def candidates(self) -> Iterator[Candidate]:
        """Every legal candidate."""
        for variant, choices in self.variants.items():
            for values in product(*choices.values()):
                candidate = Candidate.of(variant, dict(zip(choices, values, strict=True)))
                if self.rule(candidate) is None:
                    yield candidate
