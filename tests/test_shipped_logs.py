"""The tuning logs in the package: every record can still be chosen."""

from __future__ import annotations

import pytest

from tvm_attention.database import TuningRecord, shipped_logs
from tvm_attention.digest import EXPRESSIONS
from tvm_attention.schedules import Candidate, schedules_for
from tvm_attention.target import named_target


def records() -> list[TuningRecord]:
    logs = shipped_logs()
    assert [log.refusal for log in logs if log.refusal] == []
    return [record for log in logs for record in log.records]


def test_there_are_records_of_every_level() -> None:
    assert {"x86-64-v2", "x86-64-v3", "x86-64-v4"} < {record.target for record in records()}


@pytest.mark.parametrize("target", sorted({record.target for record in records()}))
def test_every_record_is_of_these_expressions_and_in_the_space(target: str) -> None:
    machine = named_target(target)
    schedules = schedules_for(machine)
    parameters = schedules.machine_parameters(machine)
    for record in records():
        if record.target != target:
            continue
        assert record.expression == EXPRESSIONS[record.hardware["kind"]], record
        candidate = Candidate.of(record.variant, record.decisions)
        space = schedules.design_space(record.workload, parameters)
        assert space.refusal(candidate) is None, f"{record}: {space.refusal(candidate)}"
