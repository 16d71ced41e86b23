"""One workload: every contender checked against float64, then all timed in turns."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from bench.checking import Admitted, Checked, Prepare, admit
from bench.peers import ours
from bench.peers.contract import Peer
from bench.problem import Problem
from bench.results import FLOAT32, OURS, Ceilings, Measured, Spread, WorkloadResult, best_peer
from bench.roofline import FMA_PEAK, READ_PEAK, Ceiling, Roofline
from tvm_attention.interleaved import Contender, Quartiles, Rounds, interleave
from tvm_attention.suites import shape_text
from tvm_attention.work import flops, kv_bytes
from tvm_attention.workload import AttentionWorkload

LEAST_ROUNDS = 5
# Five rounds have everyone: a peer is not waited for whose call takes longer than half a second and so many
# times as long as ours, or longer than the last of these and twice as long as ours.
PATIENT_SECONDS, MOST_TIMES_OURS, MOST_SECONDS = 0.5, 25.0, 4.0


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
    half = workload.dtype != "float32"
    entrants = {OURS: prepare_ours} | {n: p.prepare for n, p in peers.items()}
    if half:
        entrants[FLOAT32] = ours.prepare_float32
    admitted = admit(problem, entrants, threads)
    contenders = {n: replace(p.contender, name=n) for n, p in admitted.prepared.items()}
    slow = _too_slow(contenders) if OURS in contenders else {}
    timed = [c for n, c in contenders.items() if n not in slow]
    ceiling = _ceiling(problem, roofline)
    rounds = interleave([*timed, ceiling.contender], seconds, least=LEAST_ROUNDS)
    if OURS in contenders:
        measured = _everyone([c.name for c in timed if c.name != FLOAT32], rounds, admitted)
        ceilings = _reached(workload, ceiling, rounds)
    else:
        measured, ceilings = {}, None
    result = WorkloadResult(
        name=name,
        shape=shape_text(workload),
        workload=workload.to_dict(),
        source=admitted.prepared[OURS].source if OURS in contenders else "",
        measured=measured,
        refused={**admitted.refused, **slow},
        ceilings=ceilings,
    )
    if measured and FLOAT32 in contenders:
        result["float32"] = spread(rounds.ratio(FLOAT32, OURS))
    if (best := best_peer(result)) is not None:
        result["best_peer"] = best
    return result


def _too_slow(contenders: Mapping[str, Contender]) -> dict[str, str]:
    """Peers that would take most of the time there is, with one call's seconds."""
    own = _seconds(contenders[OURS].call, 0.0)
    limit = max(PATIENT_SECONDS, min(MOST_TIMES_OURS * own, MOST_SECONDS), 2 * own)
    found = {n: _seconds(c.call, limit) for n, c in contenders.items() if n not in (OURS, FLOAT32)}
    return {n: f"slow: {s:.3g} s a call" for n, s in found.items() if s > limit}


def _seconds(call: Callable[[], object], limit: float) -> float:
    """Of a call that is not the first one: its results have been checked. What takes longer than the limit
    is asked twice, as the machine may have been busy."""
    seconds: list[float] = []
    while len(seconds) < 2 and (not seconds or seconds[0] > limit):
        start = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - start)
    return min(seconds)


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


def _everyone(names: Sequence[str], rounds: Rounds, admitted: Admitted) -> dict[str, Measured]:
    layouts = {n: p.layout for n, p in admitted.prepared.items()}
    return {n: measured(n, rounds, admitted.checked[n], layouts[n]) for n in names}


def measured(name: str, rounds: Rounds, checked: Checked, layout: str) -> Measured:
    """As JSON."""
    return Measured(
        seconds=spread(rounds.time(name)),
        ratio=spread(rounds.ratio(name, OURS)),
        rounds=len(rounds.seconds[name]),
        max_error=checked.accuracy.max_error,
        roundings=checked.roundings,
        precision=checked.precision,
        layout=layout,
    )


def spread(quartiles: Quartiles) -> Spread:
    """As JSON."""
    return Spread(median=quartiles.median, q1=quartiles.q1, q3=quartiles.q3)
