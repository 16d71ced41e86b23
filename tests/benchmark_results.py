"""Results of benchmarks, and contenders that measure nothing, made for tests."""

from __future__ import annotations

import numpy as np

from bench import results
from bench.peers.contract import Prepared
from bench.results import OURS, Result, WorkloadResult
from bench.roofline import FMA_PEAK, READ_PEAK, Ceiling
from tvm_attention import reference
from tvm_attention.errors import UnsupportedError
from tvm_attention.interleaved import Contender
from tvm_attention.workload import AttentionWorkload

TINY = AttentionWorkload(head_dim=8, query_heads=2, query_length=20, key_length=24)
TINY_DECODE = AttentionWorkload(
    head_dim=8, query_heads=4, kv_heads=2, query_length=1, key_length=24
)


def entrant(error=0.0, name="stand-in"):
    """A contender that gives the reference's result plus an error in one place."""

    def prepare(problem, threads):
        inputs = (problem.query, problem.key, problem.value)
        right = reference.attention(*inputs, causal=problem.workload.causal).astype(np.float32)
        right[0, 0, 0, 0] += error
        return Prepared(Contender(name, lambda: None), lambda: (right,), source="default schedule")

    return prepare


def unsupported(problem, threads):
    raise UnsupportedError("no such operator")


class StandInRoofline:
    def fma_peak(self):
        return Ceiling(Contender(FMA_PEAK, lambda: None), 10)

    def read_peak(self, memory):
        return Ceiling(Contender(READ_PEAK, lambda: None), memory.nbytes)


def workload_result(name, refused=None, **ratios):
    def entry(ratio):
        return {
            "seconds": {"median": 0.002 * ratio, "q1": 0.001, "q3": 0.003},
            "ratio": {"median": ratio, "q1": ratio - 0.1, "q3": ratio + 0.1},
            "rounds": 9,
            "max_error": 1e-7,
            "roundings": 0.2,
            "precision": "float32",
            "layout": "B,H,L,E",
        }

    return WorkloadResult(
        name=name,
        shape="1x2x3x4x5",
        workload=TINY.to_dict(),
        source="default schedule",
        measured={n: entry(r) for n, r in {OURS: 1.0, **ratios}.items()},
        refused=refused or {},
        ceilings={"limit": "fma", "ours": 285.0, "machine": 359.0, "fraction": 0.794},
    )


def result_of(workloads, **fields):
    whole = {
        "schema": results.SCHEMA,
        "mode": "attention",
        "suite": "core",
        "date": "2026-11-29",
        "machine": {
            "model": "Some CPU",
            "target": "x86-64-v4",
            "micro_architecture": "icelake",
            "cores": 2,
            "l1d": 49152,
            "l2": 2**21,
            "l3": 0,
        },
        "library": {"commit": "0123456789abcdef", "changed": True},
        "packages": {"numpy": "2.4", "torch": "2.13"},
        "threads": 2,
        "pool": "openmp",
        "seconds_per_workload": 1.0,
        "absent": {"openvino": "not installed: openvino"},
        "workloads": workloads,
        "summary": results.summarise(workloads),
    }
    return Result(**{**whole, **fields})
