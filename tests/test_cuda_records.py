"""Tuning records of GPUs: held by logs and matched as those of processors are."""

from __future__ import annotations

from pathlib import Path

import pytest
from tuning_records import record

from tvm_attention import runtime
from tvm_attention.commands.logs_verify import same_kernel
from tvm_attention.database import (
    TuningLog,
    TuningRecord,
    match,
    prune_records,
    user_logs,
    write_log,
)
from tvm_attention.digest import CUDA_EXPRESSION_DIGEST, EXPRESSIONS
from tvm_attention.schedules import cuda
from tvm_attention.suites import suite
from tvm_attention.target import named_target
from tvm_attention.workload import AttentionWorkload

WIDE = AttentionWorkload(head_dim=128)
CHANGES = {"keys": 8, "overlap": 0}


@pytest.fixture
def log_of_sm_80(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A log with the default tiles of sm_80 but for CHANGES, which are too large for sm_86."""
    target = named_target("cuda-sm_80")
    candidate = cuda.default_candidate(WIDE, cuda.MACHINES["sm_80"]).replace(**CHANGES)
    made = record(
        target, workload=WIDE, variant=candidate.variant, decisions=dict(candidate.decisions),
        expression=CUDA_EXPRESSION_DIGEST, kind="modelled",
    )  # fmt: skip
    write_log(tmp_path / target.name / "made.jsonl", [made])
    monkeypatch.setenv("TVM_ATTENTION_LOG_DIR", str(tmp_path))
    # Without the shipped ones, which may be nearer.
    monkeypatch.setattr(runtime, "available_logs", lambda: user_logs())
    runtime.forget_kernels()


@pytest.mark.usefixtures("log_of_sm_80")
@pytest.mark.parametrize("arch", ["sm_80", "sm_87", "sm_90"])
def test_a_record_serves_its_gpu_and_newer_ones_of_its_limits(arch: str) -> None:
    source = runtime.select(WIDE, named_target(f"cuda-{arch}"))
    assert source.record is not None
    assert source.candidate["keys"] == 8
    assert source.level is None  # built for the GPU itself
    runtime.forget_kernels()


@pytest.mark.usefixtures("log_of_sm_80")
@pytest.mark.parametrize(("arch", "reason"), [("sm_86", "shared memory"), ("sm_75", "sm_80")])
def test_others_keep_their_defaults_and_say_why(arch: str, reason: str) -> None:
    target = named_target(f"cuda-{arch}")
    source = runtime.select(WIDE, target)
    assert source.record is None
    assert source.candidate == cuda.default_candidate(WIDE, cuda.machine_parameters(target))
    assert any(reason in text for text in source.reasons)
    runtime.forget_kernels()


SMALL = {
    "row_threads": 4, "column_threads": 8, "rows": 2, "keys": 2, "score_steps": 4, "value_steps": 4,
    "vector": 4, "overlap": 0,
}  # fmt: skip


@pytest.mark.parametrize("arch", cuda.MACHINES)
def test_a_record_within_all_limits_serves_its_gpu_and_every_newer_one(arch: str) -> None:
    """And none that is older, whatever its limits are."""
    made = record(
        named_target(f"cuda-{arch}"), workload=WIDE, variant="fused", decisions=SMALL,
        expression=CUDA_EXPRESSION_DIGEST, kind="modelled",
    )  # fmt: skip
    names = list(cuda.MACHINES)
    for other in names:
        found = match(WIDE, named_target(f"cuda-{other}"), [TuningLog("made", True, (made,))])
        serves = names.index(other) >= names.index(arch)
        assert (found.record == made) is serves, (other, found.reasons)
        assert serves or any("which is newer" in reason for reason in found.reasons)


def test_a_record_of_a_newer_gpu_is_refused_with_the_reason() -> None:
    """Features do not tell GPUs apart: the ladder alone does."""
    target = named_target("cuda-sm_75")
    found = match(WIDE, target, [TuningLog("made", True, (modelled(WIDE),))])
    assert found.record is None
    assert any("tuned for cuda-sm_80, which is newer" in reason for reason in found.reasons)


@pytest.mark.parametrize("arch", cuda.MACHINES)
def test_every_gpu_chooses_among_the_shipped_records(arch: str) -> None:
    """There are some of its own architecture."""
    target = named_target(f"cuda-{arch}")
    for workload in suite("gpu").values():
        source = runtime.select(workload, target)
        space = cuda.design_space(workload, cuda.MACHINES[arch])
        assert space.refusal(source.candidate) is None
        assert source.record is not None
        assert source.record.target == target.name


def modelled(workload: AttentionWorkload) -> TuningRecord:
    target = named_target("cuda-sm_80")
    candidate = cuda.default_candidate(workload, cuda.MACHINES["sm_80"])
    return record(
        target, workload=workload, variant=candidate.variant, decisions=dict(candidate.decisions),
        expression=CUDA_EXPRESSION_DIGEST, kind="modelled",
    )  # fmt: skip


def test_records_of_one_kernel_are_verified_by_one_build() -> None:
    first, longer = modelled(WIDE), modelled(WIDE.with_lengths(4096, 4096))
    assert first != longer
    assert same_kernel(first) == same_kernel(longer)
    assert same_kernel(first) != same_kernel(modelled(AttentionWorkload(head_dim=64)))
    plain = record(workload=WIDE)
    assert same_kernel(plain) != same_kernel(record(workload=WIDE))


def test_records_of_gpus_are_of_their_own_expression() -> None:
    kept, dropped = prune_records([modelled(WIDE)], EXPRESSIONS)
    assert (len(kept), dropped) == (1, [])
