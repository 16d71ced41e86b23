"""Made-up tuning records for the tests of the database."""

from __future__ import annotations

from typing import Any

from tvm_attention.database import TuningLog, TuningRecord
from tvm_attention.target import HardwareTarget, features_of
from tvm_attention.workload import AttentionWorkload

DIGEST = "0123456789abcdef"


def machine(
    name: str = "icelake",
    isa: str = "x86-64-v4",
    l1d: int = 48 << 10,
    l2: int = 2 << 20,
    **more: Any,
) -> HardwareTarget:
    values: dict[str, Any] = {
        "name": name,
        "kind": "x86",
        "isa": isa,
        "features": features_of(isa),
        "cores": 2,
        "l1d": l1d,
        "l2": l2,
        "l3": 32 << 20,
        "model": "Made-up CPU",
        "micro_architecture": name.replace("-", "_"),
    }
    return HardwareTarget(**{**values, **more})


def record(
    host: HardwareTarget | None = None,
    *,
    tuned: float = 1e-3,
    default: float = 2e-3,
    kind: str = "measured",
    workload: AttentionWorkload | None = None,
    **more: Any,
) -> TuningRecord:
    """A record of a host (an icelake by default) for a medium float32 workload."""
    host = host or machine()
    workload = workload or AttentionWorkload(head_dim=64)
    values: dict[str, Any] = {
        "target": host.name,
        "workload": workload,
        "length_class": workload.length_class,
        "variant": "row_block",
        "decisions": {"query_tile": 32, "key_tile": 16},
        "seconds": {"tuned": tuned, "default": default, "spread": 1e-5},
        "hardware": host.facts(),
        "threads": 2,
        "tvm": "0.27.0.post1",
        "expression": DIGEST,
        "provenance": {"kind": kind, "on": "Made-up CPU", "trials": 64},
        "date": "2025-01-31",
    }
    return TuningRecord(**{**values, **more})


def log(*records: TuningRecord, user: bool = False, name: str = "a.jsonl") -> TuningLog:
    origin = "user" if user else "shipped"
    return TuningLog(f"{origin} folder/{name}", user, records)


def several() -> list[TuningRecord]:
    """Records of different workloads and thread counts, with seconds that need every digit."""
    workloads = [
        AttentionWorkload(head_dim=64, causal="bottom_right"),
        AttentionWorkload(head_dim=80, value_dim=96, query_heads=8, kv_heads=2, query_length=1),
        AttentionWorkload(head_dim=512, key_length=2**31 - 1),
    ]
    return [record(workload=w, tuned=1 / 3 * 1e-3, threads=i + 1) for i, w in enumerate(workloads)]


def modelled(**more: Any) -> TuningRecord:
    """A record as ``tune --modelled`` writes it, with two candidates left."""
    following = [
        {"variant": "row_block", "decisions": {"query_tile": n}, "seconds": 1.1e-3 * n}
        for n in (1, 2)
    ]
    model: dict[str, Any] = {
        "tool": "llvm-mca 19.1.7",
        "core": "neoverse-n1",
        "validation": "rank correlation 0.9",
        "next": following,
    }
    provenance = {"kind": "modelled", "on": "llvm-mca", "trials": 3, "model": model}
    return record(**{"provenance": provenance, **more})
