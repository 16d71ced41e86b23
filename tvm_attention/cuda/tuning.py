"""Tuning for a GPU that is not there: the model's best candidates are compiled and modelled once more with
the registers that the compiler gave them; those that spill are left out."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import date
from functools import lru_cache
from importlib.metadata import version
from pathlib import Path

from tvm_attention.cuda.building import device_code, whole_source
from tvm_attention.cuda.ceilings import CEILINGS
from tvm_attention.cuda.compilers import compiler
from tvm_attention.cuda.machine_code import Resources
from tvm_attention.cuda.modelled import modelled_seconds, ranked
from tvm_attention.database import TuningRecord, merge_into_log, read_log
from tvm_attention.database.provenance import Provenance
from tvm_attention.database.record import Seconds
from tvm_attention.digest import CUDA_EXPRESSION_DIGEST
from tvm_attention.errors import KernelBuildError
from tvm_attention.schedules import Candidate, cuda
from tvm_attention.schedules.cuda_space import kernel_of
from tvm_attention.target import HardwareTarget
from tvm_attention.workload import AttentionWorkload

# A candidate that serves another workload by the same kernel is kept unless one is faster by so much: one
# kernel is compiled and cached for both.
_WORTH_ANOTHER = 0.03


@dataclass(frozen=True, slots=True)
class Modelled:
    """A workload's best candidate and the default schedule in modelled seconds, how many candidates were
    compiled, and why others of them were left out."""

    workload: AttentionWorkload
    candidate: Candidate
    tuned: float
    default: float
    trials: int
    refused: tuple[str, ...]


@dataclass
class ModelledTuning:
    """Workloads of one architecture in turn; ``trials`` of the model's best are compiled for each."""

    target: HardwareTarget
    trials: int
    _known: dict[object, list[Candidate]] = field(default_factory=dict)

    def best(self, workload: AttentionWorkload) -> Modelled:
        """The best candidate of a workload.

        Raises KernelBuildError if there is no compiler, UnsupportedError for a workload that no variant
        serves.
        """
        compiler()  # before anything takes time
        default = cuda.default_candidate(workload, cuda.machine_parameters(self.target))
        known = self._known.setdefault(kernel_of(workload), [])
        ahead = ranked(workload, self.target, self.trials)
        limit = modelled_seconds(workload, self.target, ahead[0]) * (1 + _WORTH_ANOTHER)
        near = [c for c in known if modelled_seconds(workload, self.target, c) <= limit]
        ahead = near or [*known, *ahead]
        found: dict[Candidate, float] = {}
        refused = []
        for candidate in dict.fromkeys([default, *ahead]):
            try:
                made = resources_of(kernel_of(workload), self.target, candidate)
            except KernelBuildError as error:
                refused.append(f"{candidate}: {error}")
                continue
            if any(r.spilled_bytes or r.stack_bytes for r in made.values()):
                refused.append(f"{candidate}: it spills registers")
                continue
            found[candidate] = modelled_seconds(workload, self.target, candidate, made)
        if not found:
            raise KernelBuildError(f"no candidate compiles without spills: {refused[0]}")
        first = min(found, key=lambda c: found[c])
        limit = found[first] * (1 + _WORTH_ANOTHER)
        chosen = next((c for c in known if found.get(c, math.inf) <= limit), first)
        known += [] if chosen in known else [chosen]
        base = found.get(default, found[chosen])
        return Modelled(workload, chosen, found[chosen], base, len(found), tuple(refused))


@lru_cache(maxsize=4096)
def resources_of(
    workload: AttentionWorkload, target: HardwareTarget, candidate: Candidate
) -> dict[str, Resources]:
    """What the functions of a candidate take, by name, when compiled for the target."""
    code = device_code(workload, target, candidate)
    return compiler().machine_code(whole_source(code), target.arch).resources


def tune_modelled(
    workloads: Sequence[AttentionWorkload],
    target: HardwareTarget,
    log: Path,
    *,
    trials: int = 4,
    minutes: float | None = None,
    again: bool = False,
    progress: Callable[[Modelled], None] | None = None,
) -> list[TuningRecord]:
    """Write a record of each workload's best candidate into a log; those that have one are passed over
    unless ``again``. The time for all of them may be limited.

    Raises as :meth:`ModelledTuning.best` does.
    """
    deadline = math.inf if minutes is None else time.monotonic() + 60 * minutes
    held = read_log(log) if log.exists() else ()
    recorded = {r.workload for r in held if r.expression == CUDA_EXPRESSION_DIGEST}
    tuning, made = ModelledTuning(target, trials), []
    for workload in workloads:
        if time.monotonic() > deadline:
            break
        if workload in recorded and not again:
            continue
        found = tuning.best(workload)
        record = _record(found, target)
        merge_into_log(log, [record], replace=again)
        made.append(record)
        if progress is not None:
            progress(found)
    return made


def _record(found: Modelled, target: HardwareTarget) -> TuningRecord:
    return TuningRecord(
        target=target.name,
        workload=found.workload,
        length_class=found.workload.length_class,
        variant=found.candidate.variant,
        decisions=dict(found.candidate.decisions),
        # A choice that is as good as the best is recorded as if it were, not as slower than the default.
        seconds=Seconds(
            tuned=_rounded(min(found.tuned, found.default)),
            default=_rounded(found.default),
            spread=0.0,
        ),
        hardware=target.facts(),
        threads=1,
        tvm=version("apache-tvm"),
        expression=CUDA_EXPRESSION_DIGEST,
        provenance=Provenance(
            kind="modelled", on=f"model of {CEILINGS[target.arch].product}", trials=found.trials
        ),
        date=date.today().isoformat(),
    )


def _rounded(seconds: float) -> float:
    return float(f"{seconds:.4g}")
