"""The parts of a run in order, and what has to be built for them."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from bench.gpu import calls, correctness, results, timing, tuning
from bench.gpu.bundle import Build, Bundle
from bench.gpu.cases import STREAM_CASES, Case, cases
from bench.gpu.classes import Search, searches, workloads
from bench.gpu.journal import Journal
from bench.gpu.peers import COMPILED, peers
from bench.gpu.place import Place
from tvm_attention.schedules import Candidate
from tvm_attention.workload import AttentionWorkload

_FEW = 3  # lengths


@dataclass(frozen=True)
class Plan:
    """What a run on an architecture does. ``only`` limits cases and workloads to names that hold one of them.

    For rehearsals ``small`` divides the lengths of the timed workloads, and few lengths are checked.
    ``kept``: candidates that were built for workloads, by their names.
    """

    arch: str
    candidates: int
    only: tuple[str, ...] = ()
    small: int = 1
    kept: Mapping[str, tuple[Candidate, ...]] = field(default_factory=dict)

    @cached_property
    def cases(self) -> list[Case]:
        few = None if self.small == 1 else _FEW
        chosen = [c for c in cases(self.arch) if self._is_chosen(c.name)]
        return [replace(c, workloads=c.workloads[:few]) for c in chosen]

    @cached_property
    def calls(self) -> list[str]:
        return [name for name in calls.CALLS if self._is_chosen(name)]

    @cached_property
    def searches(self) -> list[Search]:
        chosen = {n: _shorter(w, self.small) for n, w in workloads().items() if self._is_chosen(n)}
        return searches(self.arch, self.candidates, chosen, self.kept)

    def _is_chosen(self, name: str) -> bool:
        return not self.only or any(part in name for part in self.only)

    def builds(self) -> Iterator[Build]:
        """Every kernel of the run."""
        for case in self.cases:
            yield from case.builds(self.arch)
        if self.calls:
            yield from calls.builds(self.arch)
        for search in self.searches:
            yield from search.builds(self.arch)


@dataclass
class Run:
    """A plan on a place, written into a journal; ``seconds`` for it all, of which tuning has its share."""

    plan: Plan
    place: Place
    bundle: Bundle
    journal: Journal
    seconds: float

    def perform(self, unavailable: tuple[str, ...] = ()) -> None:
        """All parts, the safest first. Raises where the GPU itself has failed: a new process may go on."""
        self._deadline = time.monotonic() + self.seconds
        self._correctness()
        for name in self.plan.calls:
            self._unit("calls", name, lambda n=name: calls.check(*self._given, n))
        self._tuning()
        self._timing(unavailable)

    def _correctness(self) -> None:
        for case in self.plan.cases:
            self._unit("correctness", case.name, lambda c=case: correctness.check(*self._given, c))
        chosen = [c for c in self.plan.cases if c.name in STREAM_CASES]
        for case in chosen:
            self._unit(
                "correctness", f"{case.name}, unaligned",
                lambda c=case: correctness.check_unaligned(*self._given, c),
            )  # fmt: skip
            self._unit(
                "correctness", f"{case.name}, streams",
                lambda c=case: correctness.check_streams(*self._given, c),
            )  # fmt: skip

    def _tuning(self) -> None:
        """An even share of half the time that is left for each workload that is not tuned yet."""
        left = self._deadline - time.monotonic()
        todo = [s for s in self.plan.searches if s.name not in self.journal.done(tuning.CONFIRMED)]
        for n, search in enumerate(todo):
            share = left / 2 * (n + 1) / max(1, len(todo))
            until = self._deadline - left + share
            tuning.tune(*self._given, search, self.journal, until)
            self.place.synchronize()

    def _timing(self, unavailable: tuple[str, ...]) -> None:
        chosen = {n: p for n, p in peers().items() if n not in unavailable}
        slow = {n: chosen.pop(n) for n in COMPILED if n in chosen}
        for part, others in ((timing.PART, chosen), (timing.COMPILED, slow)):
            for search in self.plan.searches:
                if time.monotonic() > self._deadline:
                    return
                contenders = {timing.OURS: self._winner(search)}
                if contenders[timing.OURS] != search.candidates[0] and part == timing.PART:
                    contenders[timing.DEFAULT] = search.candidates[0]
                self._unit(
                    part, search.name,
                    lambda s=search, c=contenders, o=others: timing.compare(
                        *self._given, s.workload, c, o
                    ),
                )  # fmt: skip

    def _winner(self, search: Search) -> Candidate:
        found = self.journal.done(tuning.CONFIRMED).get(search.name)
        if found is None:
            return search.candidates[0]
        return Candidate.of(found["variant"], found["decisions"])

    def _unit(self, part: str, name: str, work: Any) -> None:
        self.journal.run(part, name, work)
        self.place.synchronize()  # raises for good where a kernel went astray

    @property
    def _given(self) -> tuple[Place, Bundle]:
        return self.place, self.bundle


def finish(run: Run, folder: Path) -> dict[str, Any]:
    """Records, figures and pictures of what the journal holds."""
    from bench.gpu.plots import draw
    from tvm_attention.errors import UnsupportedError

    results.write_records(run.place, run.journal, run.plan.searches, folder)
    values = results.gathered(run.place, run.journal)
    results.write_json(values, folder / "gpu.json")
    try:
        draw(values, folder)
    except UnsupportedError as error:
        values["plots"] = str(error)
    return values


def _shorter(w: AttentionWorkload, by: int) -> AttentionWorkload:
    """The workload with lengths and batch divided; the class of lengths may be another."""
    if by == 1:
        return w
    rows = w.query_length if w.query_length == 1 else max(1, w.query_length // by)
    return replace(
        w, batch=1, query_heads=w.group, kv_heads=1, query_length=rows,
        key_length=max(1, w.key_length // by),
    )  # fmt: skip
