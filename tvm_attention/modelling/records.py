"""The record of a modelled search, and what it says of how it came about."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import date
from importlib.metadata import version

from tvm_attention.database import SCHEMA, Provenance, Seconds, TuningRecord
from tvm_attention.database.provenance import Model, Runner
from tvm_attention.digest import EXPRESSION_DIGEST
from tvm_attention.modelling import tools
from tvm_attention.modelling.cores import Core
from tvm_attention.modelling.validation import VALIDATION
from tvm_attention.schedules import Candidate, schedules_for
from tvm_attention.target import HardwareTarget, detect_target, named_target
from tvm_attention.tuning.journal import Trial
from tvm_attention.workload import AttentionWorkload

KEPT = 5  # candidates, the record's own among them
# Of the default schedule's time: what gains less is within the model's error, and the default wins. Decoding
# waits for memory, of which a model sees no more than how much is read.
GAIN, DECODING_GAIN = 0.97, 0.9


def modelled_target(name: str, threads: int) -> HardwareTarget:
    """A target by name with the caches that its kind of core usually has, or this machine cut down to it."""
    named = named_target(name, threads)
    if named.kind == "x86":
        return replace(detect_target(name), cores=threads)
    machine = schedules_for(named).machine_parameters(named)
    return replace(named, l1d=machine.l1, l2=machine.l2)


def chosen(trials: Sequence[Trial], default: Candidate) -> list[Trial]:
    """The best trials, the winner first: the default schedule unless another gains more than the model's
    error. None where the default schedule itself could not be modelled."""
    timed = sorted((t for t in trials if t.seconds), key=lambda t: t.seconds or 0.0)
    base = next((t for t in timed if t.candidate == default), None)
    if base is None:
        return []
    gain = DECODING_GAIN if default.variant == "split_kv" else GAIN
    if (timed[0].seconds or 0.0) > gain * (base.seconds or 0.0):
        timed = [base, *(t for t in timed if t is not base)]
    return timed[:KEPT]


def record_of(
    best: Sequence[Trial],
    default_seconds: float,
    workload: AttentionWorkload,
    target: HardwareTarget,
    core: Core,
    trials: int,
) -> TuningRecord:
    """The tuning record of a search, given its best trials, the winner first."""
    winner = best[0]
    assert winner.seconds is not None
    tool = tool_name(core)
    return TuningRecord(
        schema=SCHEMA,
        target=target.name,
        workload=workload,
        length_class=workload.length_class,
        variant=winner.candidate.variant,
        decisions=dict(winner.candidate.decisions),
        seconds=Seconds(
            tuned=_rounded(winner.seconds), default=_rounded(default_seconds), spread=0.0
        ),
        hardware=target.facts(),
        threads=target.cores,
        tvm=version("apache-tvm"),
        expression=EXPRESSION_DIGEST,
        provenance=Provenance(
            kind="modelled",
            on=f"{tool}, {core.model_name}",
            trials=trials,
            model=Model(
                tool=tool,
                core=core.model_name,
                validation=VALIDATION,
                next=[
                    Runner(
                        variant=t.candidate.variant,
                        decisions=dict(t.candidate.decisions),
                        seconds=_rounded(t.seconds or 0.0),
                    )
                    for t in best[1:]
                ],
            ),
        ),
        date=date.today().isoformat(),
    )


def tool_name(core: Core) -> str:
    """What modelled: LLVM's analyser with its version, or pipelines of ours, with the library's."""
    if isinstance(core.model, str):
        return f"llvm-mca {tools.version('llvm-mca')}"
    return f"tvm-attention {version('tvm-attention')}"


def _rounded(seconds: float) -> float:
    return float(f"{seconds:.4g}")
