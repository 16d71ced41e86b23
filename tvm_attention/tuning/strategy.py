"""The search: MetaSchedule's XGBoost cost model over an evolving population of candidates.

A workload's space spans several expressions (the variant and its blocking shape the expression), which a
trace of one expression's schedule cannot cross. So the population holds candidates, of all variants;
each is scheduled at fixed lengths and its per-store features are ranked by one cost model.
"""

from __future__ import annotations

import inspect
import random
import sys
from collections.abc import Sequence
from typing import Any

from tvm_attention._tvm import signals_left_alone
from tvm_attention.cuda.building import TVM_TARGET
from tvm_attention.schedules import Candidate, DesignSpace, schedules_for
from tvm_attention.target import HardwareTarget
from tvm_attention.tuning.journal import Trial
from tvm_attention.workload import AttentionWorkload

PARENTS = 6
CHILDREN = 48
STRANGERS = 16
EXPLORE = 0.2  # of a batch is drawn at random: the model is wrong where it has seen nothing
FIRST_MODEL = 8  # measured trials before the model is believed


class CandidateSearch:
    """Proposes candidates to measure and learns from the measurements."""

    def __init__(
        self,
        workload: AttentionWorkload,
        target: HardwareTarget,
        space: DesignSpace,
        seeds: Sequence[Candidate],
        seed: int,
    ) -> None:
        self._space = space
        self._seeds = list(dict.fromkeys(c for c in seeds if space.refusal(c) is None))
        self._random = random.Random(seed)
        self._seen: set[Candidate] = set()
        self._measured: list[Trial] = []
        self._model = CostModel(workload, target)

    def learn(self, trials: Sequence[Trial]) -> None:
        """Take measured trials into the population and the model."""
        self._seen.update(t.candidate for t in trials)
        self._measured += [t for t in trials if t.seconds is not None]
        self._model.update(trials)

    def propose(self, count: int) -> list[Candidate]:
        """The next candidates to measure; fewer when the space is nearly exhausted."""
        seeds = [c for c in self._seeds if c not in self._seen][:count]
        strangers = self._draw(STRANGERS)
        if len(self._measured) < FIRST_MODEL:
            batch = seeds + strangers
        else:
            pool = list(dict.fromkeys(self._children() + strangers))
            ranked = self._model.rank(pool)
            explored = max(1, round(EXPLORE * count))
            batch = seeds + ranked[: count - explored] + strangers
        batch = list(dict.fromkeys(batch))[:count]
        self._seen.update(batch)
        return batch

    def _draw(self, count: int) -> list[Candidate]:
        found: dict[Candidate, None] = {}
        for _ in range(count * 200):
            candidate = self._space.sample(self._random)
            if candidate is not None and candidate not in self._seen:
                found[candidate] = None
            if len(found) == count:
                break
        return list(found)

    def _children(self) -> list[Candidate]:
        best = sorted(self._measured, key=lambda t: t.seconds or 0.0)[:PARENTS]
        found: dict[Candidate, None] = {}
        for _ in range(CHILDREN * 20):
            parent = self._random.choice(best).candidate
            child = self._space.mutate(parent, self._random)
            if child is not None and child not in self._seen:
                found[child] = None
            if len(found) == CHILDREN:
                break
        return list(found)


class CostModel:
    """MetaSchedule's XGBModel over candidates of one workload."""

    def __init__(self, workload: AttentionWorkload, target: HardwareTarget) -> None:
        import_tensor_intrinsics()
        import tvm
        from tvm.s_tir import meta_schedule as ms

        self._ms = ms
        self._workload = workload
        self._schedules = schedules_for(target)
        self._machine = self._schedules.machine_parameters(target)
        self._lengths = _fixed_lengths(workload)
        self._model = ms.cost_model.XGBModel(
            extractor=ms.feature_extractor.PerStoreFeature(),
            num_warmup_samples=FIRST_MODEL,
            num_tuning_cores=target.cores,
            verbose_eval=0,
            adaptive_training=False,
        )
        first = self._schedules.default_candidate(workload, self._machine)
        self._context = ms.TuneContext(
            mod=self._schedule(first).mod,
            target=tvm.target.Target(_described(target)),
            num_threads=target.cores,
        )

    def update(self, trials: Sequence[Trial]) -> None:
        """Learn from trials; failed ones count as very slow."""
        if not trials:
            return
        results = [
            self._ms.runner.RunnerResult(
                run_secs=[1e10 if t.seconds is None else t.seconds], error_msg=t.error or None
            )
            for t in trials
        ]
        candidates = [self._measurable(t.candidate) for t in trials]
        self._model.update(self._context, candidates, results)

    def rank(self, candidates: Sequence[Candidate]) -> list[Candidate]:
        """Candidates, the one believed fastest first."""
        if not candidates:
            return []
        scores = self._model.predict(self._context, [self._measurable(c) for c in candidates])
        order = sorted(range(len(candidates)), key=lambda n: -float(scores[n]))
        return [candidates[n] for n in order]

    def _schedule(self, candidate: Candidate) -> Any:
        with signals_left_alone():
            return self._schedules.build(self._workload, self._machine, candidate, self._lengths)

    def _measurable(self, candidate: Candidate) -> Any:
        schedule = self._schedule(candidate)
        arguments = self._ms.arg_info.ArgInfo.from_prim_func(schedule.mod["main"])
        return self._ms.MeasureCandidate(schedule, arguments)


def _described(target: HardwareTarget) -> dict[str, Any]:
    """The target as TVM's features of schedules depend on it."""
    if target.kind == "cuda":
        return {**TVM_TARGET, "host": {"kind": "llvm"}}
    return {**target.llvm(), "num-cores": target.cores}


def _fixed_lengths(w: AttentionWorkload) -> Any:
    from tvm_attention.compute import FixedLengths

    return FixedLengths(
        w.batch, w.query_heads, w.group, w.query_length, w.key_length, w.batch, w.key_length,
        threads=1, splits=1,
    )  # fmt: skip


def import_tensor_intrinsics() -> None:
    """Import tvm.s_tir.tensor_intrin, which MetaSchedule's TuneContext needs, in one second.

    It asks inspect.stack() for the source lines of every frame at each of hundreds of intrinsics,
    20 to 30 s a process; frames without source lines serve it as well.
    """
    original = inspect.stack

    def frames_only(context: int = 1) -> list[inspect.FrameInfo]:
        frame, found = sys._getframe(1), []
        while frame is not None:
            code = frame.f_code
            found.append(
                inspect.FrameInfo(frame, code.co_filename, frame.f_lineno, code.co_name, None, None)
            )
            frame = frame.f_back  # type: ignore[assignment]
        return found

    inspect.stack = frames_only
    try:
        import tvm.s_tir.tensor_intrin  # noqa: F401
    finally:
        inspect.stack = original
