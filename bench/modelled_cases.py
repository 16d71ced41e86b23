"""The candidates whose modelled times are compared with measured ones: drawn at random, and found by a
model."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

from tvm_attention import compiler
from tvm_attention.database import match, shipped_logs
from tvm_attention.digest import EXPRESSION_DIGEST
from tvm_attention.errors import AttentionError
from tvm_attention.modelling.code import code_of
from tvm_attention.modelling.cores import core_of
from tvm_attention.modelling.group import Member
from tvm_attention.modelling.records import chosen, modelled_target
from tvm_attention.modelling.search import MATRIX, ModelledSearch
from tvm_attention.schedules import Candidate, schedules_for
from tvm_attention.tuning.journal import Trial
from tvm_attention.workload import AttentionWorkload

TARGET = "x86-64-v4"  # whose shipped records use no matrix unit, which no model knows
Row = dict[str, Any]


class Case:
    """A workload on the target, its candidates compiled and modelled."""

    def __init__(self, workload: AttentionWorkload, threads: int, seed: int) -> None:
        self.workload, self.threads, self._seed = workload, threads, seed
        self.target = modelled_target(TARGET, threads)
        self.member, schedules = (
            Member(self.target, core_of(self.target), Path()),
            schedules_for(self.target),
        )
        self.machine = schedules.machine_parameters(self.target)
        self.space = schedules.design_space(workload, self.machine)
        self.default = schedules.default_candidate(workload, self.machine)

    def trial(self, candidate: Candidate) -> Trial:
        try:
            code = code_of(self.workload, self.target, candidate, self.threads)
        except AttentionError as error:
            return Trial(candidate, None, str(error))
        return Trial(candidate, *self.member.seconds(code, self.workload, candidate))

    def drawn(self, count: int) -> list[tuple[str, Trial]]:
        rng, found = random.Random(self._seed), dict[Candidate, Trial]()
        while len(found) < count:
            candidate = self.space.sample(rng)
            if candidate is not None and candidate.variant != MATRIX:
                found.setdefault(candidate, self.trial(candidate))
        return [("drawn", trial) for trial in found.values()]

    def searched(self, count: int) -> list[tuple[str, Trial]]:
        search = ModelledSearch(self.space, self.machine, [self.default], self._seed)
        done: list[Trial] = []
        while len(done) < count and (candidate := search.propose(done)) is not None:
            done.append(self.trial(candidate))
        best = min((t for t in done if t.seconds), key=lambda t: t.seconds or 0.0)
        # Where the default schedule is not modelled there is no record, and it serves.
        kept = next(iter(chosen(done, self.default)), self.trial(self.default))
        logs = [
            replace(log, records=tuple(r for r in log.records if r.measured and r.target == TARGET))
            for log in shipped_logs()
        ]
        found = match(
            self.workload, self.target, logs, expression=EXPRESSION_DIGEST, threads=self.threads
        )
        record = found.record
        shipped = self.default if record is None else Candidate.of(record.variant, record.decisions)
        return [
            ("shipped", self.trial(shipped)),
            ("default", self.trial(self.default)),
            ("model", best),
            ("record", kept),
        ]

    def row(self, name: str, kind: str, trial: Trial, folder: Path) -> Row:
        row: Row = {
            "name": name, "kind": kind, "workload": self.workload.to_dict(), "modelled": trial.seconds,
            "variant": trial.candidate.variant, "decisions": dict(trial.candidate.decisions),
            "error": trial.error,
        }  # fmt: skip
        if trial.seconds is not None or kind != "drawn":
            key = compiler.kernel_key(self.workload, self.target, trial.candidate)
            row["kernel"] = f"{key}.ll"
            path = folder / row["kernel"]
            if not path.exists():
                path.write_text(compiler.build_source(self.workload, self.target, trial.candidate))
        return row
