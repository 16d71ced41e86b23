"""Log folders of their own, records that hold, and trials, for the tests of the commands."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tuning_records import record

from tvm_attention.database import TuningRecord, user_log_path, write_log
from tvm_attention.digest import EXPRESSION_DIGEST
from tvm_attention.schedules import Candidate, schedules_for
from tvm_attention.target import HardwareTarget, named_target
from tvm_attention.tuning.journal import Trial
from tvm_attention.workload import AttentionWorkload

SMALL = AttentionWorkload(head_dim=16, query_heads=2, query_length=64, key_length=64)


def legal_record(
    target: str | HardwareTarget = "x86-64-v3",
    workload: AttentionWorkload = SMALL,
    **more: Any,
) -> TuningRecord:
    """A record of the expression as it is, with decisions that the target's design space allows."""
    host = named_target(target) if isinstance(target, str) else target
    schedules = schedules_for(host)
    candidate = schedules.default_candidate(workload, schedules.machine_parameters(host))
    values = {
        "variant": candidate.variant,
        "decisions": dict(candidate.decisions),
        "expression": EXPRESSION_DIGEST,
    }
    return record(host, workload=workload, **{**values, **more})


def write_user_log(*records: TuningRecord, name: str = "tuned") -> Path:
    """A log in the user's folder of the first record's target."""
    path = user_log_path(records[0].target, name)
    write_log(path, records)
    return path


def trial(seconds: float | None, variant: str = "running", **decisions: int) -> Trial:
    """A trial of a search; without seconds, one that crashed."""
    return Trial(Candidate.of(variant, decisions), seconds, "" if seconds else "crashed")


def damage(path: Path) -> None:
    """Makes a log one that is refused."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text('{"schema": 1, "library": "tvm_attention"}\n{"half a rec', encoding="utf-8")
