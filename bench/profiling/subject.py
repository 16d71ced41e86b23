"""The kernel that a profiling program looks at, from its command line."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass

from bench.candidate_kernels import CandidateCalls
from bench.command import THREADS
from bench.plausible import picked
from tvm_attention.commands.arguments import OneLineParser, positive
from tvm_attention.errors import InvalidValueError
from tvm_attention.schedules import Candidate, schedules_for
from tvm_attention.suites import SUITES
from tvm_attention.target import HardwareTarget, detect_target
from tvm_attention.threads import launcher
from tvm_attention.workload import AttentionWorkload


@dataclass(frozen=True, slots=True)
class Subject:
    """A candidate that serves a workload on a target."""

    workload: AttentionWorkload
    target: HardwareTarget
    candidate: Candidate
    threads: int

    def call(self) -> Callable[[], None]:
        """A call on random numbers, whose result has been found right. Raises InvalidValueError for one
        that is wrong."""
        launcher().set_num_threads(self.threads)
        made = CandidateCalls(self.workload, self.threads).of(self.target, self.candidate)
        if not made.accuracy.max_error <= 4.0 * made.accuracy.allowed:
            raise InvalidValueError(f"{self.candidate}: error {made.accuracy.max_error:.3g}")
        return made.run

    def __str__(self) -> str:
        return f"{self.candidate} for {self.target.name}, threads {self.threads}"


def subject_parser(program: str, description: str | None) -> argparse.ArgumentParser:
    """With the options that :func:`subject_of` reads."""
    parser = OneLineParser(prog=program, description=description, allow_abbrev=False)
    parser.add_argument(
        "workload", help="of a suite, such as bert-512, or its fields: head_dim=64,key_length=512"
    )
    parser.add_argument("--candidate", help='"running key_block=192 ...", as explain prints it')
    parser.add_argument("--target", help="a level, such as x86-64-v3; default this machine")
    parser.add_argument("--threads", type=THREADS, default=1)
    parser.add_argument("--seconds", type=positive, default=3.0)
    return parser


def subject_of(options: argparse.Namespace) -> Subject:
    """The loader's choice where no candidate is given. Raises an AttentionError for what cannot be."""
    workload = workload_of(options.workload)
    target = detect_target(options.target)
    if options.candidate is None:
        taken = picked(workload, target)
        return Subject(workload, taken.target, taken.candidate, options.threads)
    candidate = parsed_candidate(options.candidate)
    schedules = schedules_for(target)
    space = schedules.design_space(workload, schedules.machine_parameters(target))
    if (refusal := space.refusal(candidate)) is not None:
        raise InvalidValueError(f"--candidate: {refusal}")
    return Subject(workload, target, candidate, options.threads)


def parsed_candidate(text: str) -> Candidate:
    """From the text of one. Raises InvalidValueError."""
    variant, *decisions = text.split()
    try:
        return Candidate.of(variant, {n: int(v) for n, v in (d.split("=") for d in decisions)})
    except ValueError:
        raise InvalidValueError(
            f"--candidate: expected a variant and name=number, got {text!r}"
        ) from None


def workload_of(text: str) -> AttentionWorkload:
    """By its name in a suite, or from its fields. Raises an AttentionError."""
    named = {n: w for suite in reversed(list(SUITES.values())) for n, w in suite.items()}
    return named[text] if text in named else AttentionWorkload.from_text(text)
