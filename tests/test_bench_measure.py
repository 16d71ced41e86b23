"""What is admitted to a measurement, and what a measured workload's result holds."""

from __future__ import annotations

import json
import math
import re
import time
from dataclasses import replace

import numpy as np
import pytest
from benchmark_results import TINY, TINY_DECODE, StandInRoofline, entrant, unsupported

from bench.checking import ALLOWED, admit
from bench.measure import measure
from bench.peers.contract import Peer, Prepared
from bench.problem import Problem
from bench.results import OURS, WorkloadResult
from tvm_attention.interleaved import Contender
from tvm_attention.workload import AttentionWorkload


def test_only_right_answers_are_admitted():
    entrants = {
        OURS: entrant(),
        "close": entrant(error=1e-5),
        "wrong": entrant(error=1e-2),
        "nan": entrant(error=math.nan),
        "unable": unsupported,
    }
    found = admit(Problem.of(TINY), entrants, threads=1)
    assert list(found.prepared) == [OURS, "close"]
    assert found.checked["close"].accuracy.max_error == pytest.approx(1e-5, rel=0.1)
    assert found.refused["unable"] == "not supported: no such operator"
    assert found.refused["wrong"].startswith("wrong: error 0.01")
    assert found.refused["nan"].startswith("wrong: error nan")


def test_ours_is_held_to_the_stricter_bound():
    found = admit(Problem.of(TINY), {OURS: entrant(error=1e-5)}, threads=1)
    assert found.refused[OURS].startswith("wrong")


@pytest.mark.parametrize("precision", ALLOWED)
def test_zeros_are_wrong_in_every_format(precision):
    """Of many keys results are small, so that a bound by the values' range would let zeros pass."""
    workload = AttentionWorkload(head_dim=8, query_heads=1, query_length=4, key_length=4096)
    zeros = Prepared(
        Contender("zeros", lambda: None),
        lambda: (np.zeros((1, 1, 4, 8), np.float32),),
        precision=precision,
    )
    found = admit(Problem.of(workload), {"zeros": lambda *_: zeros}, threads=1)
    assert found.refused["zeros"].startswith("wrong")


def test_a_slow_peer_is_not_waited_for(monkeypatch):
    def slow(problem, threads):
        prepared = entrant(name="slow")(problem, threads)
        calls.append(1)
        return replace(prepared, contender=Contender("slow", lambda: time.sleep(0.02)))

    calls = []
    monkeypatch.setattr("bench.measure.PATIENT_SECONDS", 0.01)
    peers = {"slow": Peer("slow", (), slow)}
    entry = measure("tiny", TINY, peers, StandInRoofline(), 1, 0.05, entrant(name=OURS))
    assert calls
    assert list(entry["measured"]) == [OURS]
    assert re.fullmatch(r"slow: 0\.0\d+ s a call", entry["refused"]["slow"])


@pytest.mark.parametrize(("workload", "limit"), [(TINY, "fma"), (TINY_DECODE, "read")])
def test_a_measured_workload_can_be_written(workload, limit):
    peers = {
        "peer": Peer("peer", (), entrant(name="peer")),
        "unable": Peer("unable", (), unsupported),
    }
    entry = measure("tiny", workload, peers, StandInRoofline(), 1, 0.05, entrant(name=OURS))
    assert entry.keys() == WorkloadResult.__required_keys__ | {"best_peer"}
    assert entry["best_peer"] == "peer"
    assert list(entry["measured"]) == [OURS, "peer"]
    assert entry["measured"][OURS]["ratio"] == {"median": 1.0, "q1": 1.0, "q3": 1.0}
    assert entry["measured"]["peer"]["rounds"] >= 5
    assert entry["refused"] == {"unable": "not supported: no such operator"}
    assert entry["source"] == "default schedule"
    assert entry["ceilings"]["limit"] == limit
    assert entry["ceilings"]["fraction"] > 0
    json.dumps(entry, allow_nan=False)


def test_a_wrong_result_of_ours_is_not_timed():
    entry = measure("tiny", TINY, {}, StandInRoofline(), 1, 0.05, entrant(error=1.0))
    assert entry["measured"] == {}
    assert entry["ceilings"] is None
    assert entry["refused"][OURS].startswith("wrong")
