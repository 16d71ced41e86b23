"""The model of kernels on GPUs that are not there: its parts against numbers counted by hand, its bounds."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from tvm_attention.__main__ import main
from tvm_attention.cuda import tuning, verifying
from tvm_attention.cuda.banks import lane_passes, passes
from tvm_attention.cuda.ceilings import CEILINGS
from tvm_attention.cuda.machine_code import MachineCode, Resources
from tvm_attention.cuda.modelled import modelled_seconds, occupancy, ranked
from tvm_attention.cuda.tuning import ModelledTuning, tune_modelled
from tvm_attention.database import read_log
from tvm_attention.errors import KernelBuildError
from tvm_attention.schedules import cuda
from tvm_attention.suites import suite
from tvm_attention.target import named_target
from tvm_attention.work import flops, kv_bytes
from tvm_attention.workload import AttentionWorkload

PREFILL = AttentionWorkload(
    head_dim=128, dtype="float16", batch=2, query_heads=16, query_length=4096, key_length=4096
)
DECODE = AttentionWorkload(
    head_dim=128,
    dtype="bfloat16",
    batch=8,
    query_heads=32,
    kv_heads=8,
    query_length=1,
    key_length=8192,
)
PLAIN = AttentionWorkload(head_dim=64, query_heads=16, query_length=2048, key_length=2048)


def test_passes_over_banks() -> None:
    assert passes([4 * n for n in range(32)], 4) == 1
    assert passes([8 * n for n in range(32)], 4) == 2
    assert passes([128 * n for n in range(32)], 4) == 32
    assert passes([64] * 32, 4) == 1  # all lanes receive one word
    assert passes([16 * n for n in range(32)], 16) == 4  # 512 bytes, 128 at a time
    assert passes([2 * n for n in range(32)], 2) == 1


@pytest.mark.parametrize(("row", "expected"), [(64, 32), (68, 4), (65, 4 * 5)])
def test_rows_of_keys_with_and_without_padding(row: int, expected: int) -> None:
    """Vectors of four floats at the same place of 32 neighbouring rows. Of an odd row they are not aligned:
    the model then sees single floats."""
    if row % 4:
        assert lane_passes(32, 0, row * 4, 4) == 1
        return
    assert lane_passes(32, 0, row * 4, 16) == expected


def test_occupancy_is_what_the_limits_leave() -> None:
    a100, t4 = cuda.MACHINES["sm_80"], cuda.MACHINES["sm_75"]
    assert occupancy(a100, 256, 64, 40 << 10).blocks == 4
    assert occupancy(a100, 128, 255, 0) == occupancy(a100, 128, 249, 0)
    assert occupancy(a100, 128, 255, 0).blocks == 2
    assert (occupancy(a100, 32, 16, 0).blocks, occupancy(a100, 32, 16, 0).limit) == (32, "blocks")
    assert occupancy(a100, 256, 32, 163 << 10).blocks == 1
    assert occupancy(t4, 256, 32, 32 << 10).blocks == 2  # nothing is reserved there
    assert occupancy(a100, 1024, 128, 0).blocks == 0


def test_limits_are_those_of_the_vendors_tables() -> None:
    """Shared memory of a multiprocessor in KiB, what is reserved, blocks, warps."""
    expected = {
        "sm_75": (64, 0, 16, 32), "sm_80": (164, 1, 32, 64), "sm_86": (100, 1, 16, 48),
        "sm_87": (164, 1, 16, 48), "sm_89": (100, 1, 24, 48), "sm_90": (228, 1, 32, 64),
        "sm_100": (228, 1, 32, 64),
    }  # fmt: skip
    for arch, (shared, reserved, blocks, warps) in expected.items():
        m = cuda.MACHINES[arch]
        assert (m.shared >> 10, m.reserved >> 10, m.blocks) == (shared, reserved, blocks)
        assert (m.threads, m.shared_per_block) == (32 * warps, m.shared - m.reserved)


@pytest.mark.parametrize("arch", cuda.MACHINES)
def test_no_candidate_beats_the_ceilings(arch: str) -> None:
    target, ceilings = named_target(f"cuda-{arch}"), CEILINGS[arch]
    rate = 2.0 * ceilings.multiprocessors * ceilings.clock
    for workload in (PREFILL, PLAIN, DECODE):
        best = ranked(workload, target, 1)[0]
        seconds = modelled_seconds(workload, target, best)
        default = cuda.default_candidate(workload, cuda.MACHINES[arch])
        assert seconds <= modelled_seconds(workload, target, default)
        products = ceilings.tensor if best.variant == "fused_tensor" else ceilings.fma
        assert seconds > flops(workload) / (rate * products)
        assert seconds > kv_bytes(workload) / ceilings.bandwidth
        assert seconds < 50 * flops(workload) / (rate * products) + 20 * (
            kv_bytes(workload) / ceilings.bandwidth + 1e-5
        )


def test_what_the_model_makes_of_changes() -> None:
    target = named_target("cuda-sm_80")
    default = cuda.default_candidate(PREFILL, cuda.MACHINES["sm_80"])
    seconds = modelled_seconds(PREFILL, target, default)
    assert modelled_seconds(PREFILL.with_lengths(4096, 8192), target, default) > 1.8 * seconds
    without = default.replace(overlap=0, vector=4)
    assert modelled_seconds(PREFILL, target, without) > seconds
    wide = default.replace(row_threads=64)
    assert modelled_seconds(PREFILL, target, wide, {"f": Resources(300, 0, 0)}) == math.inf
    causal = AttentionWorkload(**{**PREFILL.to_dict(), "causal": "top_left"})
    assert 0.4 < modelled_seconds(causal, target, default) / seconds < 0.8


@pytest.fixture
def no_compiler(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Nothing is compiled: candidates with ``spilled`` decisions spill."""
    spilled: list[str] = []

    def made(workload: object, target: object, candidate: object) -> dict[str, Resources]:
        spills = any(part in str(candidate) for part in spilled)
        return {"f": Resources(100, 0, 8 if spills else 0)}

    monkeypatch.setattr(tuning, "compiler", lambda: None)
    monkeypatch.setattr(tuning, "resources_of", made)
    return spilled


def test_candidates_that_spill_are_left_out(no_compiler: list[str]) -> None:
    target = named_target("cuda-sm_90")
    first = ModelledTuning(target, 3).best(PREFILL)
    no_compiler.append(f"keys={first.candidate['keys']} ")
    other = ModelledTuning(target, 40).best(PREFILL)
    assert other.candidate["keys"] != first.candidate["keys"]
    assert any("spills" in reason for reason in other.refused)
    no_compiler[:] = ["fused"]
    with pytest.raises(KernelBuildError, match="without spills"):
        ModelledTuning(target, 3).best(PREFILL)


def test_records_go_to_the_log_and_workloads_of_one_kernel_share_it(
    no_compiler: list[str], tmp_path: Path
) -> None:
    target, log = named_target("cuda-sm_86"), tmp_path / "cuda-sm_86" / "made.jsonl"
    near = PREFILL.with_lengths(3000, 3000)
    made = tune_modelled([PREFILL, near], target, log, trials=2)
    assert [r.workload for r in made] == [PREFILL, near]
    assert made[0].decisions == made[1].decisions
    for record in read_log(log):
        assert record.provenance["kind"] == "modelled"
        assert record.provenance["on"] == "model of A10"
        assert record.ratio <= 1
    assert tune_modelled([PREFILL, near], target, log) == []  # there already


def test_a_target_without_a_model_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    expected = {"": "cuda-sm_86", "cortex-a35": "expected a core that there is a model of"}
    for target, message in expected.items():
        named = ["--target", target] if target else []
        assert main(["tune", "--modelled", "--workload", "head_dim=64", *named]) == 2
        assert message in capsys.readouterr().err


def test_verification_says_what_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    target = named_target("cuda-sm_90")
    small = AttentionWorkload(head_dim=32)
    candidate = cuda.default_candidate(small, cuda.MACHINES["sm_90"])

    class Compiler:
        name = "a compiler"

        def __init__(self, used: Resources) -> None:
            self.used = used

        def machine_code(self, source: str, arch: str) -> MachineCode:
            return MachineCode(arch, b"\x7fELF", {"attention_kernel": self.used})

    for used, reason in (
        (Resources(64, 0, 0), None),
        (Resources(64, 0, 8), "8 bytes spilled"),
        (Resources(64, 16, 0), "a stack of 16"),
        (Resources(255, 0, 0), None),
        (Resources(300, 0, 0), "registers in a block"),
    ):
        monkeypatch.setattr(verifying, "compiler", lambda used=used: Compiler(used))
        if reason is None:
            verifying.verify_candidate(small, target, candidate)
        else:
            with pytest.raises(KernelBuildError, match=reason):
                verifying.verify_candidate(small, target, candidate)


def test_the_suite_of_gpus_has_every_class() -> None:
    found = {(w.dtype, w.head_dim, w.length_class, bool(w.causal)) for w in suite("gpu").values()}
    for dtype in ("float16", "bfloat16", "float32"):
        for dim in (64, 128):
            for lengths in ("short", "medium", "long"):
                assert {(dtype, dim, lengths, False), (dtype, dim, lengths, True)} <= found
        for rows in (1, 4, 8):
            assert (dtype, 128, f"decode-r{rows}", False) in found
