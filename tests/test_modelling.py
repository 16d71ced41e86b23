"""Modelled tuning end to end, for machines that are not here, and what it refuses."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tvm_attention import environment
from tvm_attention.__main__ import main
from tvm_attention.database import TuningRecord, left_to_measure, read_log, user_log_path
from tvm_attention.errors import TuningError
from tvm_attention.modelling import self_check, tools, tune_modelled
from tvm_attention.modelling.code import Code, code_of
from tvm_attention.modelling.cores import CORES, core_of
from tvm_attention.modelling.estimate import estimate
from tvm_attention.modelling.records import chosen, modelled_target
from tvm_attention.schedules import Candidate, arm
from tvm_attention.target import named_target
from tvm_attention.tuning.journal import Trial
from tvm_attention.work import flops
from tvm_attention.workload import AttentionWorkload

needs_llvm = pytest.mark.skipif(
    shutil.which("llvm-mca-19") is None or shutil.which("opt-19") is None,
    reason="needs llvm-mca and opt of LLVM 19: apt-get install llvm-19",
)
SMALL = AttentionWorkload(head_dim=64, query_heads=4, query_length=96, key_length=192)
A72 = arm.MACHINES["cortex_a72"]


@pytest.fixture
def folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv(environment.LOG_DIR, str(tmp_path / "logs"))
    monkeypatch.setenv(environment.CACHE_DIR, str(tmp_path / "cache"))
    return tmp_path


@pytest.mark.parametrize("name", CORES)
@needs_llvm
def test_models_say_what_the_guides_say(name: str) -> None:
    assert self_check.differences(name) == []


@needs_llvm
def test_a_wrong_model_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """What LLVM 19 itself takes a Cortex-A76 for: half of its multiply-adds."""
    wrong = {**CORES, "cortex_a76": replace(CORES["cortex_a76"], model="cortex-a76")}
    monkeypatch.setattr(self_check, "CORES", wrong)
    self_check.require_checked.cache_clear()
    with pytest.raises(TuningError, match=r"24 FMLA: 24\.0. cycles, 12\.00 by the guide"):
        self_check.require_checked("cortex_a76")
    self_check.require_checked.cache_clear()


@pytest.fixture(scope="module")
def code() -> Code:
    candidate = arm.default_candidate(SMALL, A72)
    return code_of(SMALL, named_target("cortex-a72", 2), candidate, 2)


@needs_llvm
def test_loops_hold_the_work(code: Code) -> None:
    """Multiply-adds of the machine code times how often its loops turn are those of the workload, and some
    for 2**x and the row sums."""
    [region] = code.regions
    assert (region.slowest, region.tasks) == (
        4.0,
        8.0,
    )  # two blocks of 48 rows in each of four heads
    done = sum(loop.times * loop.counts.fma for loop in region.loops) * region.tasks
    assert 1.0 <= done / (flops(SMALL) / 8) <= 1.2
    scores = [loop for loop in region.loops if loop.counts.fma == 72]  # 18 accumulators, 4 steps
    assert [(loop.turns, loop.innermost) for loop in scores] == [(16.0, True)]
    assert scores[0].times == 16 * (192 / 6) * 4  # steps, tiles of keys, strips
    assert scores[0].counts.spills == 0


@needs_llvm
def test_faster_cores_are_modelled_faster(code: Code) -> None:
    candidate, machine = arm.default_candidate(SMALL, A72), A72
    cycles = {
        name: estimate(code, SMALL, candidate, CORES[name], machine).cycles
        for name in ("cortex_a53", "cortex_a72", "neoverse_n1", "neoverse_v1")
    }
    assert list(cycles) == sorted(cycles, key=lambda name: -cycles[name])
    peak = flops(SMALL) / 2 / 8  # cycles of a thread at one FMLA of four lanes a cycle
    assert peak < cycles["cortex_a72"] < 2 * peak
    assert peak / 2 < cycles["neoverse_n1"] < 2 * peak / 2


@needs_llvm
def test_spills_cost() -> None:
    """24 accumulators, 12 registers of keys and 2 of queries are more than there are."""
    target, core = named_target("cortex-a72", 2), CORES["neoverse_n1"]
    fits = arm.default_candidate(SMALL, A72)
    spills = fits.replace(
        score_rows=12, score_vectors=2, query_block=24, query_strips=2, value_vectors=2
    )
    spills = spills.replace(key_block=192)
    assert arm.design_space(SMALL, A72).refusal(spills) is None
    code = code_of(SMALL, target, spills, 2)
    assert max(loop.counts.spills for loop in code.regions[0].loops if loop.counts.fma == 96) > 0
    cycles = estimate(code, SMALL, spills, core, A72).cycles
    assert cycles > 1.1 * estimate(code_of(SMALL, target, fits, 2), SMALL, fits, core, A72).cycles


@needs_llvm
def test_left_over_rows_are_not_modelled(code: Code) -> None:
    odd = arm.default_candidate(SMALL, A72).replace(value_rows=7)
    with pytest.raises(TuningError, match="value_rows=7 leaves rows over"):
        estimate(code, SMALL, odd, CORES["cortex_a72"], A72)


@needs_llvm
def test_records_of_two_cores(folder: Path) -> None:
    told: list[Any] = []
    result = tune_modelled(
        SMALL, ["neoverse-v1", "neoverse-n2"], trials=4, num_threads=2, progress=told.append
    )
    assert list(result) == ["neoverse_v1", "neoverse_n2"]
    assert [p.phase for p in told] == ["search"] * 4 + ["done"]
    for name, one in result.items():
        [record], [outcome] = one.records, one.outcomes
        assert (outcome.kept, outcome.trials) == (True, 4)
        assert read_log(user_log_path(name)) == (record,)
        check_record(record, name)
    # Again: from the journals, without a compilation.
    told.clear()
    again = tune_modelled(SMALL, ["neoverse-v1"], trials=4, num_threads=2, progress=told.append)
    assert [p.phase for p in told] == ["done"]
    assert again["neoverse_v1"].records == result["neoverse_v1"].records


def check_record(record: TuningRecord, name: str) -> None:
    provenance = record.provenance
    assert (record.target, record.threads, record.measured) == (name, 2, False)
    assert record.hardware["l1d"] == arm.MACHINES[name].l1
    assert record.ratio <= 1
    model = provenance["model"]
    assert model["tool"].startswith("llvm-mca 19.")
    assert model["core"] == name.replace("_", "-")
    assert "rank correlation" in model["validation"]
    kept = left_to_measure(record)
    assert 2 <= len(kept) <= 5
    space = arm.design_space(SMALL, A72)
    assert [space.refusal(Candidate.of(*c)) for c in kept] == [None] * len(kept)
    assert TuningRecord.from_dict(json.loads(json.dumps(record.to_dict()))) == record


@needs_llvm
def test_the_command(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = "head_dim=64,query_heads=4,query_length=96,key_length=192"
    arguments = [
        "tune",
        "--modelled",
        "--workload",
        text,
        "--trials",
        "1",
        "--threads",
        "2",
        "--json",
    ]
    assert main([*arguments, "--target", "cortex-a53,cortex-a55"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert list(told["targets"]) == ["cortex_a53", "cortex_a55"]
    [record] = told["targets"]["cortex_a53"]["records"]
    assert record["provenance"]["model"]["core"] == "own pipelines"
    assert main(arguments) == 2
    assert "expected --target NAME" in capsys.readouterr().err
    assert main([*arguments, "--target", "cortex-a35"]) == 2
    assert "expected a core that there is a model of" in capsys.readouterr().err


def test_without_the_tools(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    tools.program.cache_clear()
    with pytest.raises(TuningError, match="apt-get install llvm-19"):
        tune_modelled(SMALL, "cortex-a72", trials=1)
    # Another version's models are other models.
    other = tmp_path / "opt"
    other.write_text("#!/bin/sh\necho 'LLVM version 18.1.3'\n")
    other.chmod(0o755)
    with pytest.raises(TuningError, match="opt of LLVM 19"):
        tools.program("opt")
    tools.program.cache_clear()


def test_the_default_schedule_wins_unless_clearly_beaten() -> None:
    default, other = Candidate.of("running", {"a": 1}), Candidate.of("running", {"a": 2})
    failed = Trial(Candidate.of("running", {"a": 3}), None, "timed out")
    near = [Trial(default, 1.0), failed, Trial(other, 0.98)]
    assert [t.candidate for t in chosen(near, default)] == [default, other]
    clear = [Trial(default, 1.0), Trial(other, 0.9)]
    assert [t.candidate for t in chosen(clear, default)] == [other, default]
    assert chosen([Trial(other, 0.9)], default) == []


def test_targets_without_a_model() -> None:
    with pytest.raises(TuningError, match="cortex-a53, "):
        core_of(named_target("cortex-x2"))
    target = modelled_target("apple-m1", 4)
    assert (core_of(target).name, target.l1d, target.cores) == ("m1", 128 << 10, 4)
