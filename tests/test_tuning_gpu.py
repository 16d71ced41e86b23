"""Tuning on a GPU of this machine, rehearsed with the stand-in driver, which child processes find, too."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gpu_stand_in
import pytest
from cuda_on_cpu import built

from tvm_attention.cuda import compilers, toolkit
from tvm_attention.cuda import driver as driving
from tvm_attention.database import read_log
from tvm_attention.digest import CUDA_EXPRESSION_DIGEST
from tvm_attention.errors import InvalidValueError, KernelBuildError, TuningError, UnsupportedError
from tvm_attention.schedules import Candidate
from tvm_attention.target import named_target
from tvm_attention.tuning import TuningProgress, gpu_trials, tune
from tvm_attention.tuning.this_gpu import ThisGpu
from tvm_attention.workload import AttentionWorkload

SMALL = AttentionWorkload(head_dim=16, query_heads=1, query_length=20, key_length=40)
OPTIONS = AttentionWorkload(
    head_dim=16, batch=2, query_heads=2, query_length=1, key_length=40, mask="bool", sinks=True,
    alibi=True, ragged=True, output="attention_and_lse",
)  # fmt: skip
FUSED = Candidate.of(
    "fused",
    {"row_threads": 4, "column_threads": 8, "rows": 2, "keys": 2, "score_steps": 4, "value_steps": 4,
     "vector": 4, "overlap": 0},
)  # fmt: skip
SPLIT_KV = FUSED.replace(row_threads=1, column_threads=32, rows=1, keys=1)
SPLIT_KV = Candidate.of("fused_split_kv", dict(SPLIT_KV.decisions))


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """A machine with a GPU of compute capability 8.7 and its compiler."""
    made = built(Path(__file__).with_name("cuda_driver.cc").read_text(), "driver")
    shutil.copy(made, tmp_path / "libcuda.so.1")
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))
    monkeypatch.setenv(gpu_stand_in.FOLDER, str(tmp_path))
    monkeypatch.setenv("TVM_ATTENTION_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(driving, "_NAMES", (str(tmp_path / "libcuda.so.1"),))
    driving.driver.cache_clear()
    yield
    driving.driver.cache_clear()
    gpu_trials._flushed.cache_clear()
    gpu_trials._uploaded.cache_clear()


@pytest.mark.usefixtures("gpu")
def test_a_search_leaves_a_record_of_the_gpu_that_measured(tmp_path: Path) -> None:
    said: list[TuningProgress] = []
    log = tmp_path / "cuda-sm_87" / "mine.jsonl"
    place = ThisGpu(device=1, compiler=gpu_stand_in.compiler)
    result = tune(SMALL, "cuda", trials=4, log=log, on=place, progress=said.append)
    (outcome,) = result.outcomes
    assert (outcome.kept, outcome.trials) == (True, 4), outcome
    assert max(said, key=lambda p: p.trial).failures == {}
    (record,) = read_log(log)
    assert (record.target, record.expression) == ("cuda-sm_87", CUDA_EXPRESSION_DIGEST)
    assert record.hardware["model"] == "stand-in 1"
    assert record.provenance == {"kind": "measured", "on": "stand-in 1", "trials": 4}
    again = tune(SMALL, "cuda-sm_87", trials=4, log=log, on=place)
    assert "already tuned" in again.outcomes[0].reason


def built_for(candidate: Candidate, workload: AttentionWorkload) -> gpu_trials.Built:
    target = named_target("cuda-sm_87")
    return gpu_trials.build(workload, target, candidate, compiler=gpu_stand_in.compiler)


@pytest.mark.usefixtures("gpu")
def test_candidates_are_checked_with_all_options() -> None:
    made = built_for(SPLIT_KV, OPTIONS)
    assert gpu_trials.measure(made, OPTIONS, SPLIT_KV, 1, float("inf"), device=1) > 0
    first, second = gpu_trials.confirm([made, made], OPTIONS, [SPLIT_KV, SPLIT_KV], 1, device=1)
    assert (first.ratio, first.low, first.high) == (1.0, 1.0, 1.0)
    assert 0 < second.low <= second.ratio <= second.high


@pytest.mark.usefixtures("gpu")
def test_a_wrong_result_is_refused_and_a_fault_ends_the_process(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    code, _ = built_for(FUSED, SMALL)
    _, wrong = built_for(FUSED.replace(rows=1, row_threads=8), SMALL)
    with pytest.raises(TuningError, match="wrong result"):  # with the threads of another
        gpu_trials.measure((code, wrong), SMALL, FUSED, 1, float("inf"))

    class Ended(BaseException):
        pass

    def ended(status: int) -> None:
        assert status == gpu_trials.FAULT
        raise Ended

    monkeypatch.setattr(gpu_trials.os, "_exit", ended)
    with pytest.raises(Ended):
        gpu_trials.measure((code, b"/there/is/none\0"), SMALL, FUSED, 1, float("inf"))


@pytest.mark.usefixtures("gpu")
def test_what_cannot_be_tuned_for_is_said_before_anything_runs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with pytest.raises(InvalidValueError, match="expected cuda-sm_87, which GPU 0"):
        tune(SMALL, "cuda-sm_90")
    monkeypatch.setattr(compilers, "nvrtc", lambda: None)
    monkeypatch.setattr(toolkit, "nvcc", lambda: None)
    compilers.compiler.cache_clear()
    with pytest.raises(KernelBuildError, match="expected NVRTC or nvcc"):
        tune(SMALL, "cuda")
    compilers.compiler.cache_clear()
    monkeypatch.setattr(driving, "_NAMES", ("libcuda_that_is_not_there.so",))
    driving.driver.cache_clear()
    with pytest.raises(UnsupportedError, match="expected NVIDIA's driver"):
        tune(SMALL, "cuda")


def test_a_candidate_that_spills_is_not_measured() -> None:
    class Spilling(gpu_stand_in.Compiler):
        def machine_code(self, source: str, arch: str) -> Any:
            used = compilers.read_resources(
                "Compiling entry function 'a'\n 8 bytes stack frame, 8 bytes spill stores, 8 bytes "
                "spill loads\n Used 255 registers"
            )
            return compilers.MachineCode(arch, b"", used)

    with pytest.raises(TuningError, match="spills"):
        gpu_trials.build(SMALL, named_target("cuda-sm_87"), FUSED, compiler=Spilling)
