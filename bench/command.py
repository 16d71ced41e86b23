"""The benchmark's command line."""

from __future__ import annotations

import argparse
import datetime
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import tvm_attention
from bench import machine, results
from bench.measure import measure
from bench.mixed import TORCH, is_plain, measure_mixed
from bench.peers import PEERS, absence
from bench.report import print_report
from bench.results import Result, WorkloadResult
from bench.roofline import Roofline
from tvm_attention import environment
from tvm_attention.commands.arguments import OneLineParser, positive, whole_number
from tvm_attention.commands.bar import stepped
from tvm_attention.commands.ending import ended
from tvm_attention.commands.output import console
from tvm_attention.errors import InvalidValueError
from tvm_attention.memory_needed import require_memory
from tvm_attention.suites import SUITES, suite
from tvm_attention.threads import launcher
from tvm_attention.workload import AttentionWorkload

THREADS = whole_number(1, environment.MAX_THREADS)
PROGRAM = "bench"  # begins what is said on stderr

MeasureOne = Callable[[str, AttentionWorkload], WorkloadResult]


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the benchmark; the exit status is 1 when a result of ours was wrong, 2 for bad input or a
    file that cannot be written (one line on stderr), 130 after Ctrl-C, 141 for a closed pipe."""
    options = _parser().parse_args(arguments)
    return ended(lambda: _perform(options), PROGRAM)


def _perform(options: argparse.Namespace) -> int:
    if options.json:
        results.require_writable(options.json)
    result = run(options)
    try:
        print_report(result, console())  # first: it is there even if the disk is full meanwhile
    finally:
        if options.json:  # even if nobody reads the table any more
            results.write(result, options.json)
    return 1 if results.wrong_results(result["workloads"]) else 0


def run(options: argparse.Namespace) -> Result:
    """Measures what the options ask for. Raises InvalidValueError for a peer or name not known."""
    workloads = chosen_workloads(options.suite, options.only)
    for workload in workloads.values():
        require_memory(workload)
    names, absent = chosen_peers([TORCH] if options.mixed else options.peers.split(","))
    if options.mixed and not all(map(is_plain, workloads.values())):
        raise InvalidValueError(
            f"--mixed: expected workloads in float32 with no option but causal, got suite "
            f"{options.suite}; take core"
        )
    if options.mixed and absent:
        raise InvalidValueError(f"--mixed needs torch, got {absent[TORCH]}")
    _set_threads(options.threads, with_torch=TORCH in names)
    measure_one = _mixed(options) if options.mixed else _alone(options, names)
    todo = list(workloads.items())
    measured = [measure_one(*one) for one in stepped(todo, lambda o: o[0])]
    return Result(
        schema=results.SCHEMA,
        mode="mixed" if options.mixed else "attention",
        suite=options.suite,
        date=datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d"),
        machine=machine.machine(),
        library=machine.library(),
        packages=machine.packages(),
        threads=options.threads,
        pool=launcher().name,
        seconds_per_workload=options.seconds,
        absent=absent,
        workloads=measured,
        summary=results.summarise(measured),
        by_kind=results.by_kind(measured),
    )


def _set_threads(threads: int, with_torch: bool) -> None:
    if with_torch:
        # Imported before anything runs, so that ours is on torch's thread pool from the start.
        import torch

        launcher().set_num_threads(threads)
        torch.set_num_threads(threads)
    else:
        launcher().set_num_threads(threads)


def _alone(options: argparse.Namespace, names: Sequence[str]) -> MeasureOne:
    roofline = Roofline(options.threads)
    peers = {name: PEERS[name] for name in names}
    return lambda name, workload: measure(
        name, workload, peers, roofline, options.threads, options.seconds
    )


def _mixed(options: argparse.Namespace) -> MeasureOne:
    attention = tvm_attention.scaled_dot_product_attention

    def measure_one(name: str, workload: AttentionWorkload) -> WorkloadResult:
        source = str(tvm_attention.load(workload, num_threads=options.threads).source)
        return measure_mixed(name, workload, options.seconds, attention, source)

    return measure_one


def chosen_workloads(name: str, only: Sequence[str]) -> Mapping[str, AttentionWorkload]:
    """The suite, cut down to the names given if there are any."""
    workloads = suite(name)
    unknown = [n for n in only if n not in workloads]
    if unknown:
        raise InvalidValueError(
            f"--only: expected names of suite {name} ({', '.join(workloads)}), got {unknown[0]!r}"
        )
    return {n: w for n, w in workloads.items() if not only or n in only}


def chosen_peers(names: Sequence[str]) -> tuple[list[str], dict[str, str]]:
    """Those asked for that are installed, and why the others are absent."""
    unknown = [n for n in names if n not in PEERS]
    if unknown:
        raise InvalidValueError(f"--peers: expected {', '.join(PEERS)}, got {unknown[0]!r}")
    reasons = {n: absence(PEERS[n]) for n in names}
    present = [n for n, reason in reasons.items() if reason is None]
    return present, {n: reason for n, reason in reasons.items() if reason is not None}


def _parser() -> argparse.ArgumentParser:
    cores = len(os.sched_getaffinity(0))
    parser = OneLineParser(prog="bench_attention", description=__doc__, allow_abbrev=False)
    parser.add_argument("--suite", default="core", choices=SUITES)
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME", help="of the suite")
    parser.add_argument("--peers", default=",".join(PEERS), help="comma-separated; default all")
    parser.add_argument("--threads", type=THREADS, default=cores, help="for every contender")
    parser.add_argument("--seconds", type=positive, default=5.0, help="of timing for each workload")
    parser.add_argument("--mixed", action="store_true", help="Linear, attention, Linear in torch")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the result here")
    return parser
