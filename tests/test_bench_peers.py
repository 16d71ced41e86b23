"""The peers of the benchmark are right on what they compute, and absent ones are named."""

from __future__ import annotations

from dataclasses import replace

import pytest
from benchmark_results import TINY, TINY_DECODE, unsupported

from bench import command
from bench.checking import admit
from bench.peers import PEERS, absence, ours
from bench.peers.contract import Peer
from bench.problem import Problem
from bench.results import OURS
from tvm_attention.workload import AttentionWorkload


def test_an_absent_peer_is_named_with_the_reason(monkeypatch):
    absent = Peer("other", ("numpy", "no_such_package_here"), unsupported)
    assert absence(absent) == "not installed: no_such_package_here"
    monkeypatch.setitem(PEERS, "other", absent)
    assert command.chosen_peers(["other"]) == ([], {"other": absence(absent)})


VARIED = {
    "plain": TINY,
    "decode": TINY_DECODE,
    "causal": AttentionWorkload(head_dim=8, causal=True, query_length=9, key_length=9),
    "bool": replace(TINY, mask="bool", mask_dense=True),
    "additive": replace(TINY, mask="float32", mask_dense=True),
    "padding": replace(TINY, batch=2, mask="bool", mask_per_key=True),
    "lengths": replace(TINY, batch=2, ragged=True),
    "window": AttentionWorkload(
        head_dim=8, causal=True, query_length=20, key_length=20, window=(3, -1)
    ),
    "bfloat16": replace(TINY, dtype="bfloat16"),
    "float16": replace(TINY, dtype="float16"),
    "int8": replace(TINY_DECODE, head_dim=32, value_dim=32, kv_dtype="int8"),
}


@pytest.mark.parametrize("name", [OURS, *(n for n in PEERS if n != "flex")])
def test_peers_are_right_on_what_they_compute(name):
    """flex compiles C++ for each: `bench_attention.py` holds it to the same before it is timed."""
    if name != OURS and absence(PEERS[name]):
        pytest.skip(absence(PEERS[name]))
    prepare = ours.prepare if name == OURS else PEERS[name].prepare
    kinds = ("decode", "bool", "lengths", "int8") if name == OURS else VARIED  # one kernel each
    served = set()
    for kind in kinds:
        workload = VARIED[kind]
        found = admit(Problem.of(workload), {name: prepare}, threads=1)
        assert not [why for why in found.refused.values() if why.startswith("wrong")], kind
        if found.prepared:
            found.prepared[name].contender.call()
            served.add(kind)
    if name in (OURS, "torch"):
        assert served == set(kinds)
    elif not name.startswith("torch-"):  # where torch chooses that itself
        assert served
