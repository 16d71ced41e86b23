"""The trials of a workload, far beyond those that tuning takes, and what is learnt from them."""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator, Sequence
from functools import partial
from random import Random
from typing import Any

from bench.candidate_kernels import CandidateCalls
from bench.result_journal import ResultJournal
from tvm_attention.commands.bar import bar
from tvm_attention.interleaved import Contender, interleave
from tvm_attention.schedules import Candidate, DesignSpace, schedules_for
from tvm_attention.suites import shape_text, suite
from tvm_attention.target import HardwareTarget
from tvm_attention.tuning.journal import Trial
from tvm_attention.tuning.place import Measurement
from tvm_attention.tuning.workers import LocalWorkers

SHORT = 24  # trials of an ordinary search
GUIDED, RANDOM = "guided", "random"
BATCH = 8
SHARES = (0.95, 0.99)  # of the best's speed


class Study:
    """The trials of one workload."""

    def __init__(
        self,
        name: str,
        target: HardwareTarget,
        options: argparse.Namespace,
        journal: ResultJournal,
        workers: LocalWorkers,
        deadline: float,
    ) -> None:
        self.name, self.workload = name, suite("shipping")[name]
        self._target, self._options, self._journal = target, options, journal
        self._workers, self._deadline = workers, deadline
        schedules = schedules_for(target)
        parameters = schedules.machine_parameters(target)
        self._space: DesignSpace = schedules.design_space(self.workload, parameters)
        self._starts: list[Candidate] = schedules.starting_points(self.workload, parameters)

    def search(self) -> bool:
        """Whether all trials are there."""
        from tvm_attention.tuning.strategy import CandidateSearch

        guided = self.trials(GUIDED)
        if len(guided) < self._options.guided:
            seed = len(guided)
            search = CandidateSearch(self.workload, self._target, self._space, self._starts, seed)
            search.learn([t for t, _ in guided])
            while (count := self._options.guided - len(self.trials(GUIDED))) > 0:
                batch = search.propose(min(BATCH, count))
                if not batch or time.monotonic() >= self._deadline:
                    break
                search.learn(self._measure(GUIDED, batch))
        strangers = self._strangers()
        while (count := self._options.random - len(self.trials(RANDOM))) > 0:
            batch = [c for c, _ in zip(strangers, range(min(BATCH, count)), strict=False)]
            if not batch or time.monotonic() >= self._deadline:
                break
            self._measure(RANDOM, batch)
        return self.is_complete()

    def is_complete(self) -> bool:
        """Whether every trial that was asked for is there."""
        wanted: dict[str, int] = {GUIDED: self._options.guided, RANDOM: self._options.random}
        return all(len(self.trials(part)) >= count for part, count in wanted.items())

    def trials(self, part: str) -> list[tuple[Trial, float]]:
        """Trials in order, with the minutes that the part had taken by then."""
        found: list[tuple[Trial, float]] = []
        minutes = 0.0
        stored = self._journal.read()
        while (entry := stored.get(self._key(part, len(found)))) is not None:
            candidate = Candidate.of(entry["variant"], entry["decisions"])
            minutes += entry["took"] / 60
            found.append((Trial(candidate, entry["seconds"], entry["error"]), minutes))
        return found

    def _key(self, part: str, number: int) -> str:
        return f"{self.name}/{part}/{number}"

    def _strangers(self) -> Iterator[Candidate]:
        """Drawn at random from the whole space, those that are measured left out."""
        seen = {t.candidate for part in (GUIDED, RANDOM) for t, _ in self.trials(part)}
        rng = Random(len(seen))
        for _ in range(1_000_000):
            drawn = self._space.sample(rng)
            if drawn is not None and drawn not in seen:
                seen.add(drawn)
                yield drawn

    def _measure(self, part: str, batch: list[Candidate]) -> list[Trial]:
        """As tuning does: built side by side, then measured one by one."""
        begun = time.monotonic()
        before = self.trials(part)
        best = min((t.seconds for t, _ in before if t.seconds is not None), default=float("inf"))
        built = self._workers.build([(self.workload, self._target, c) for c in batch])
        each = (time.monotonic() - begun) / len(batch)
        done = []
        with bar(len(batch)) as advance:
            for number, (candidate, (source, error)) in enumerate(zip(batch, built, strict=True)):
                advance(f"{self.name}, {part} {len(before) + number + 1}")
                start, seconds = time.monotonic(), None
                if source is not None:
                    task = Measurement(source, self.workload, candidate, self._options.threads)
                    [(_, (seconds, error))] = self._workers.measure([task], partial(float, best))
                best = min(best, seconds or best)
                took = each + time.monotonic() - start
                entry = {
                    "variant": candidate.variant, "decisions": dict(candidate.decisions),
                    "seconds": seconds, "error": error[:200], "took": took,
                }  # fmt: skip
                self._journal.add(self._key(part, len(before) + number), entry)
                done.append(Trial(candidate, seconds, error))
        return done

    def result(self) -> dict[str, Any]:
        """The curve of the guided part, and the finalists timed in turns."""
        guided, drawn = self.trials(GUIDED), self.trials(RANDOM)
        finalists = {
            f"best of {min(SHORT, len(guided))} trials": _best(guided[:SHORT]),
            f"best of {len(guided)} trials": _best(guided),
            f"best of {len(drawn)} at random": _best(drawn),
        }
        shares = self._timed({n: c for n, c in finalists.items() if c is not None})
        best = min((t.seconds for t, _ in guided + drawn if t.seconds), default=None)
        assert best is not None
        curve, least = [], float("inf")
        for trial, minutes in guided:
            least = min(least, trial.seconds or least)
            curve.append((minutes, best / least))
        return {
            "name": self.name,
            "workload": self.workload.to_dict(),
            "shape": shape_text(self.workload),
            "best ms": best * 1e3,
            "reached": {f"{share:.0%}": _reached(curve, share) for share in SHARES},
            "share of the best's speed": shares,
            "finalists": {n: str(c) for n, c in finalists.items()},
            "curve": [{"minutes": round(m, 3), "share": round(s, 4)} for m, s in curve],
            "failed": sum(t.seconds is None for t, _ in guided + drawn),
        }

    def _timed(self, finalists: dict[str, Candidate]) -> dict[str, float]:
        """Their speed over the fastest's, in turns."""
        calls = CandidateCalls(self.workload, self._options.threads)
        contenders = [
            Contender(n, calls.of(self._target, c).run) for n, c in finalists.items()
        ]  # fmt: skip
        rounds = interleave(contenders, self._options.seconds * len(contenders), least=5)
        first = contenders[0].name
        times = {c.name: rounds.ratio(c.name, first).median for c in contenders}
        return {n: min(times.values()) / t for n, t in times.items()}


def _best(trials: Sequence[tuple[Trial, float]]) -> Candidate | None:
    measured = [t for t, _ in trials if t.seconds is not None]
    return min(measured, key=lambda t: t.seconds or 0.0).candidate if measured else None


def _reached(curve: Sequence[tuple[float, float]], share: float) -> dict[str, float] | None:
    for number, (minutes, reached) in enumerate(curve, 1):
        if reached >= share:
            return {"trials": number, "minutes": round(minutes, 2)}
    return None
