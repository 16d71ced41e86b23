"""What a source says of the schedule."""

from __future__ import annotations

from command_logs import legal_record

from tvm_attention import KernelSource
from tvm_attention.schedules import Candidate
from tvm_attention.target import detect_target


def test_source_of_a_record() -> None:
    record = legal_record(detect_target())
    candidate = Candidate.of(record.variant, record.decisions)
    source = KernelSource(candidate, record, "exact machine", ("taken",))
    assert source.kind == "tuned"
    assert str(source) == f"tuned (exact machine): {record} ({candidate})"
