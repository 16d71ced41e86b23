"""Ours and all peers on one workload, in turns, on a clock of the GPU's own."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from bench.gpu.bundle import Bundle, kernel
from bench.gpu.correctness import ERROR_LIMIT, OnPlace
from bench.gpu.journal import Values
from bench.gpu.peers import Prepare
from bench.gpu.place import Place
from bench.gpu.tuning import in_turns
from tvm_attention.errors import TuningError
from tvm_attention.interleaved import Quartiles
from tvm_attention.schedules import Candidate
from tvm_attention.work import flops, kv_bytes
from tvm_attention.workload import AttentionWorkload

# Peers that compile themselves first, for seconds each, come in a part of their own after all others.
PART, COMPILED = "timing", "timing, compiled peers"
OURS, DEFAULT = "ours", "ours, default schedule"
ROUNDS = 20
HOST_CALLS = 50
PEER_LIMIT = 100.0  # of the error that is promised: beyond it, it is another answer


def compare(
    place: Place, bundle: Bundle, workload: AttentionWorkload, candidates: Mapping[str, Candidate],
    peers: Mapping[str, Prepare],
) -> Values:  # fmt: skip
    """Seconds of each contender, its ratio to ours within a round, its error; why others are left out.

    Raises TuningError where a result of ours is wrong.
    """
    on = OnPlace(place, workload)
    calls: dict[str, Callable[[], Any]] = {}
    errors: dict[str, float] = {}
    for name, candidate in candidates.items():
        made = kernel(bundle, place, workload, candidate)
        on.poison()
        on.run(made)
        errors[name] = on.error()
        if not errors[name] <= ERROR_LIMIT:
            raise TuningError(f"{name}: wrong result, {errors[name]:.3g} times what is promised")
        calls[name] = lambda made=made: on.run(made)  # type: ignore[misc]
    refused = _add_peers(place, on, peers, calls, errors)
    names = list(calls)
    rounds = dict(zip(names, in_turns(place, list(calls.values()), ROUNDS), strict=True))
    first = np.array(rounds[OURS])
    found = {
        name: {
            "seconds": Quartiles.of(r).to_dict(),
            "ratio": Quartiles.of(list(np.array(r) / first)).to_dict(),
            "error": errors[name],
            "host_seconds": _host_seconds(place, calls[name]),
        }
        for name, r in rounds.items()
    }
    median = found[OURS]["seconds"]["median"]  # type: ignore[index]
    return {
        "workload": workload.to_dict(),
        "candidate": str(candidates[OURS]),
        "contenders": found,
        "refused": refused,
        "tflops": flops(workload) / median / 1e12,
        "gbytes_per_second": kv_bytes(workload) / median / 1e9,
    }


def _add_peers(
    place: Place, on: OnPlace, peers: Mapping[str, Prepare], calls: dict[str, Any],
    errors: dict[str, float],
) -> dict[str, str]:  # fmt: skip
    """Those that compute the workload right become calls; the reasons of the others are returned."""
    refused: dict[str, str] = {}
    for name, prepare in peers.items():
        try:
            call = prepare(on.workload, *on.arrays)
            result = place.array(call())
            found = on.expectation.accuracy(result)
        except Exception as error:
            refused[name] = f"{type(error).__name__}: {error}"[:500]
            continue
        errors[name] = found.max_error / found.allowed
        if errors[name] <= PEER_LIMIT:
            calls[name] = call
        else:
            refused[name] = f"wrong: {errors[name]:.3g} times the error that is promised of ours"
    return refused


def _host_seconds(place: Place, call: Callable[[], object]) -> float:
    """The processor's time to start a call, the GPU's not waited for."""
    place.synchronize()
    start = time.perf_counter()
    for _ in range(HOST_CALLS):
        call()
    seconds = (time.perf_counter() - start) / HOST_CALLS
    place.synchronize()
    return seconds
