"""python bench/profiling/stages.py bert-512: which stage of a kernel takes which share of its time.

The kernel is timed in turns with others of the same tiles that do less: half the head dimension (scores),
half the value dimension (values), no exponential. What a stage takes is what its absence saves; the rest is
the remaining softmax, packing, memory and overhead. Stages overlap in an out-of-order processor, so that the
shares are estimates; a kernel without its exponential is wrong by design, and never cached.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent))

from rich.table import Table

from bench.candidate_kernels import CandidateCalls
from bench.command import PROGRAM
from bench.profiling.subject import Subject, subject_of, subject_parser
from tvm_attention.commands.ending import ended
from tvm_attention.commands.output import console
from tvm_attention.compiler import build_source, load_source
from tvm_attention.errors import InvalidValueError
from tvm_attention.interleaved import Contender, Rounds, interleave
from tvm_attention.schedules import schedules_for

WHOLE, SCORES, VALUES, EXPONENTIAL = "whole", "scores", "values", "exponential"


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit status 2 for a workload or candidate that there is not."""
    options = subject_parser("stages", __doc__).parse_args(arguments)

    def perform() -> int:
        subject = subject_of(options)
        calls = dict(stage_calls(subject))
        contenders = [Contender(n, c) for n, c in calls.items()]
        _print(subject, interleave(contenders, options.seconds * len(contenders), least=5))
        return 0

    return ended(perform, PROGRAM)


def stage_calls(subject: Subject) -> Iterator[tuple[str, Callable[[], None]]]:
    """The whole kernel, and those that do less of what their name says. A dimension that cannot be halved
    with these tiles is left out."""
    yield WHOLE, subject.call()
    w = subject.workload
    assert w.value_dim is not None
    for name, half in (
        (SCORES, replace(w, head_dim=w.head_dim // 2, value_dim=w.value_dim)),
        (VALUES, replace(w, value_dim=w.value_dim // 2)),
    ):
        schedules = schedules_for(subject.target)
        machine = schedules.machine_parameters(subject.target)
        if schedules.design_space(half, machine).refusal(subject.candidate) is None:
            yield name, replace(subject, workload=half).call()
    yield EXPONENTIAL, _without_exponential(subject)


def shares(seconds: dict[str, float]) -> dict[str, float]:
    """Of the whole: half a dimension saves half its stage."""
    whole = seconds[WHOLE]
    saved = {n: (whole - s) / whole for n, s in seconds.items() if n != WHOLE}
    found = {n: x * (1 if n == EXPONENTIAL else 2) for n, x in saved.items()}
    return {**found, "rest": 1 - sum(found.values())}


def _without_exponential(subject: Subject) -> Callable[[], None]:
    from tvm_attention.compute import exp2

    left_out = 0

    def unchanged(x: Any, *_: Any) -> Any:
        nonlocal left_out
        left_out += 1
        return x

    with patch.object(exp2, "exp2", unchanged):
        source = build_source(subject.workload, subject.target, subject.candidate)
    if not left_out:
        raise InvalidValueError("stages: expected a kernel that computes exp2, got none")
    calls = CandidateCalls(subject.workload, subject.threads)
    return calls.of_kernel(load_source(source), subject.candidate)[0]


def _print(subject: Subject, rounds: Rounds) -> None:
    seconds = {n: rounds.ratio(n, WHOLE).median * rounds.time(WHOLE).median for n in rounds.seconds}
    table = Table("stage", "share of the time", "ms", title=str(subject))
    for name, share in shares(seconds).items():
        table.add_row(name, f"{share:.0%}", f"{share * seconds[WHOLE] * 1e3:.3g}")
    table.add_row(WHOLE, "100%", f"{seconds[WHOLE] * 1e3:.3g}")
    console().print(table)


if __name__ == "__main__":
    raise SystemExit(main())
