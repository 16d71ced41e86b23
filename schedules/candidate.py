"""A point of a design space, and the space itself."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from random import Random


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

    @property
    def decodes(self) -> bool:
        """Whether the keys are split among tasks, each of which serves the rows of its length class."""
        return self.variant in ("split_kv", "matrix_decode")

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

    def sample(self, rng: Random) -> Candidate | None:
        """A random candidate, None when the draw is not legal."""
        variant = rng.choice(sorted(self.variants))
        drawn = {name: rng.choice(values) for name, values in self.variants[variant].items()}
        candidate = Candidate.of(variant, drawn)
        return candidate if self.rule(candidate) is None else None

    def mutate(self, parent: Candidate, rng: Random) -> Candidate | None:
        """The parent with one to three decisions drawn anew, None when that is not legal."""
        choices = self.variants[parent.variant]
        names = rng.sample(sorted(choices), k=min(len(choices), rng.choice((1, 1, 2, 3))))
        child = parent.replace(**{name: rng.choice(choices[name]) for name in names})
        return child if child != parent and self.rule(child) is None else None

    def candidates(self) -> Iterator[Candidate]:
        """Every legal candidate."""
        for variant, choices in self.variants.items():
            for values in product(*choices.values()):
                candidate = Candidate.of(variant, dict(zip(choices, values, strict=True)))
                if self.rule(candidate) is None:
                    yield candidate
