"""One workload: every contender checked against float64, then all timed in turns."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from bench.peers import ours
from bench.peers.contract import Peer, Prepared
from bench.problem import Problem
from bench.results import OURS, Ceilings, Measured, Spread, WorkloadResult
from bench.roofline import FMA_PEAK, READ_PEAK, Ceiling, Roofline
from tvm_attention import accuracy
from tvm_attention.accuracy import Accuracy
from tvm_attention.errors import UnsupportedError
from tvm_attention.interleaved import Quartiles, Rounds, interleave
from tvm_attention.suites import shape_text
from tvm_attention.work import flops, kv_bytes
from tvm_attention.workload import AttentionWorkload

# Peers promise no bound; beyond this many roundings of the values' range it is another answer.
PEER_ROUNDINGS = 100.0
LEAST_ROUNDS = 5

Prepare = Callable[[Problem, int], Prepared]


def measure(
    name: str,
    workload: AttentionWorkload,
    peers: Mapping[str, Peer],
    roofline: Roofline,
    threads: int,
    seconds: float,
    prepare_ours: Prepare = ours.prepare,
) -> WorkloadResult:
    """Times take about ``seconds``, more if five rounds take longer."""
    problem = Problem.of(workload)
    entrants = {OURS: prepare_ours} | {n: p.prepare for n, p in peers.items()}
    prepared, accuracies, refused = admit(problem, entrants, threads)
    contenders = {n: replace(p.contender, name=n) for n, p in prepared.items()}
    ceiling = _ceiling(problem, roofline)
    everyone = [*contenders.values(), ceiling.contender]
    rounds = interleave(everyone, seconds, least=LEAST_ROUNDS)
    if OURS in prepared:
        measured = {n: _measured(n, rounds, accuracies[n], prepared[n].layout) for n in prepared}
        ceilings = _reached(workload, ceiling, rounds)
    else:
        measured, ceilings = {}, None
    return WorkloadResult(
        name=name,
        shape=shape_text(workload),
        workload=workload.to_dict(),
        source=prepared[OURS].source if OURS in prepared else "",
        measured=measured,
        refused=refused,
        ceilings=ceilings,
    )


def admit(
    problem: Problem, entrants: Mapping[str, Prepare], threads: int
) -> tuple[dict[str, Prepared], dict[str, Accuracy], dict[str, str]]:
    """Those who compute the problem right, how accurate they are, and why others are refused."""
    prepared: dict[str, Prepared] = {}
    accuracies: dict[str, Accuracy] = {}
    refused: dict[str, str] = {}
    for name, prepare in entrants.items():
        try:
            entrant = prepare(problem, threads)
        except UnsupportedError as error:
            refused[name] = f"not supported: {error}"
            continue
        found = worst_accuracy(problem, entrant)
        if found.holds or (name != OURS and found.roundings <= PEER_ROUNDINGS):
            prepared[name], accuracies[name] = entrant, found
        else:
            refused[name] = f"wrong: error {found.max_error:.3g}, {found.roundings:.3g} roundings"
    return prepared, accuracies, refused


def worst_accuracy(problem: Problem, entrant: Prepared) -> Accuracy:
    """Of all results an entrant gives; a NaN is the worst."""
    inputs = (problem.query, problem.key, problem.value)
    found = [accuracy.compare(r, *inputs, problem.workload) for r in entrant.results()]
    return max(found, key=lambda a: (a.max_error != a.max_error, a.max_error))


def _ceiling(problem: Problem, roofline: Roofline) -> Ceiling:
    if problem.workload.length_class.startswith("decode"):
        return roofline.read_peak(problem.key_value)
    return roofline.fma_peak()


def _reached(workload: AttentionWorkload, ceiling: Ceiling, rounds: Rounds) -> Ceilings:
    reads = ceiling.contender.name == READ_PEAK
    work = kv_bytes(workload) if reads else flops(workload)
    # Rounds cancel the machine's mood: machine time over ours, times ours' work over the machine's.
    share = rounds.ratio(READ_PEAK if reads else FMA_PEAK, OURS).median * work / ceiling.work
    return Ceilings(
        limit="read" if reads else "fma",
        ours=work / rounds.time(OURS).median / 1e9,
        machine=ceiling.work / rounds.time(ceiling.contender.name).median / 1e9,
        fraction=share,
    )


def _measured(name: str, rounds: Rounds, accuracy: Accuracy, layout: str) -> Measured:
    return Measured(
        seconds=spread(rounds.time(name)),
        ratio=spread(rounds.ratio(name, OURS)),
        rounds=len(rounds.seconds[name]),
        max_error=accuracy.max_error,
        roundings=accuracy.roundings,
        layout=layout,
    )


def spread(quartiles: Quartiles) -> Spread:
    """As JSON."""
    return Spread(median=quartiles.median, q1=quartiles.q1, q3=quartiles.q3)
