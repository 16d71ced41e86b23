"""Loading: which record or default schedule is taken, for which target and threads, and why."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from attention_cases import assert_right, inputs, poisoned, runnable_levels
from command_logs import SMALL, damage, legal_record, write_user_log

from tvm_attention import environment, explain, functional, load, runtime
from tvm_attention.database import user_log_path, user_logs
from tvm_attention.errors import InvalidTypeError, InvalidValueError
from tvm_attention.schedules import Candidate, schedules_for
from tvm_attention.target import HardwareTarget, detect_target, named_target
from tvm_attention.workload import AttentionWorkload

OUT = (1, 2, 64, 16)


def forget() -> None:
    runtime.forget_kernels()
    functional.forget_calls()


@pytest.fixture(autouse=True)
def _logs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """An empty folder of user logs, and no shipped ones."""
    monkeypatch.setenv(environment.LOG_DIR, str(tmp_path))
    monkeypatch.setattr(runtime, "available_logs", user_logs)
    forget()
    yield
    monkeypatch.undo()
    forget()


def default_of(workload: AttentionWorkload, target: HardwareTarget) -> Candidate:
    schedules = schedules_for(target)
    found: Candidate = schedules.default_candidate(workload, schedules.machine_parameters(target))
    return found


def other_candidate(workload: AttentionWorkload, target: HardwareTarget) -> Candidate:
    """A legal one that is not the default."""
    schedules = schedules_for(target)
    space = schedules.design_space(workload, schedules.machine_parameters(target))
    default = default_of(workload, target)
    choices = space.variants[default.variant]
    others = (default.replace(**{n: value}) for n in sorted(choices) for value in choices[n])
    return next(c for c in others if c != default and space.refusal(c) is None)


def record_of(candidate: Candidate, target: HardwareTarget) -> Any:
    more = {"variant": candidate.variant, "decisions": dict(candidate.decisions)}
    return legal_record(target, **more)


def computes(kernel: Any, workload: AttentionWorkload = SMALL) -> None:
    q, k, v = inputs(workload)
    out = poisoned((*q.shape[:3], v.shape[3]))
    kernel(q, k, v, out)
    assert_right(out, q, k, v)


def test_without_a_record_the_default_schedule_is_taken() -> None:
    kernel = load(SMALL)
    assert kernel.source.kind == "default"
    assert kernel.source.candidate == default_of(SMALL, detect_target())
    computes(kernel)


def test_a_record_of_this_machine_is_taken_and_said() -> None:
    target = detect_target()
    candidate = other_candidate(SMALL, target)
    record = record_of(candidate, target)
    write_user_log(record)
    kernel = load(SMALL)
    assert kernel.source.kind == "tuned"
    assert kernel.source.record == record
    assert kernel.source.candidate == candidate
    computes(kernel)
    said = explain(SMALL).to_dict()
    assert json.loads(json.dumps(said)) == said
    assert said["taken"] == "tuned"
    assert said["record"] == record.to_dict()
    assert said["decisions"] == dict(candidate.decisions)
    assert said["rung"] == kernel.source.rung
    assert f"taken: tuned ({kernel.source.rung})" in str(explain(SMALL))


def test_a_record_of_the_default_schedule_leaves_sizes_to_it() -> None:
    target = named_target("icelake", cores=2)
    wide = replace(SMALL, head_dim=256, value_dim=256)
    near, few = (replace(wide, query_length=n, key_length=n) for n in (200, 20))
    assert default_of(near, target) != default_of(few, target)
    write_user_log(legal_record(target, near))
    found = explain(few, target).source
    assert found.candidate == default_of(few, target)
    assert found.record is not None
    assert "that of this workload is taken" in found.reasons[0]
    forget()
    other = other_candidate(near, target)
    more = {"variant": other.variant, "decisions": dict(other.decisions)}
    write_user_log(legal_record(target, near, **more))
    assert explain(few, target).source.candidate == other


def test_new_records_are_seen_once_the_old_choice_is_forgotten() -> None:
    assert load(SMALL).source.kind == "default"
    write_user_log(legal_record(detect_target()))
    assert load(SMALL).source.kind == "default"
    forget()
    assert load(SMALL).source.kind == "tuned"


def test_a_record_of_narrower_vectors_does_not_serve() -> None:
    """Not where the machine's own vectors are wider: the default schedule is faster than that."""
    level = named_target(runnable_levels()[0])
    record = record_of(other_candidate(SMALL, level), level)
    write_user_log(record)
    kernel = load(SMALL)
    wider = runnable_levels()[0] != detect_target().isa
    assert (kernel.source.record is None) == wider
    assert not wider or any("lanes" in reason for reason in kernel.source.reasons)
    computes(kernel)


@pytest.mark.parametrize("content", ["damaged", "foreign", "newer schema", "not text"])
def test_a_log_that_cannot_be_read_is_skipped_and_said(content: str) -> None:
    target = detect_target()
    good = legal_record(target)
    write_user_log(good, name="good")
    path = user_log_path(target.name, "bad")
    if content == "damaged":
        damage(path)
    elif content == "foreign":
        path.write_text('{"schema": 1, "library": "other"}\n')
    elif content == "newer schema":
        path.write_text('{"library": "tvm_attention", "schema": 2}\n')
    else:
        path.write_bytes(b"\x80\x04\xff")
    found = explain(SMALL)
    assert found.source.record == good
    assert [r for r in found.source.reasons if "bad.jsonl" in r], found
    assert "bad.jsonl" in str(found)
    computes(load(SMALL))


def test_only_a_damaged_log_leaves_the_default_schedule() -> None:
    damage(user_log_path(detect_target().name, "bad"))
    kernel = load(SMALL)
    assert kernel.source.kind == "default"
    assert any("bad.jsonl" in reason for reason in kernel.source.reasons)
    computes(kernel)


def test_a_record_that_is_not_legal_is_refused_and_said() -> None:
    target = detect_target()
    bad = dict(default_of(SMALL, target).decisions) | {"query_block": 7}
    write_user_log(legal_record(target, decisions=bad))
    found = explain(SMALL)
    assert found.source.kind == "default"
    assert any("query_block=7" in reason for reason in found.source.reasons), found


@pytest.mark.parametrize("level", runnable_levels())
@pytest.mark.parametrize("way", ["argument", "variable", "target"])
def test_targets_that_are_asked_for(way: str, level: str, monkeypatch: pytest.MonkeyPatch) -> None:
    target: Any = {"argument": level, "variable": None, "target": detect_target(level)}[way]
    if way == "variable":
        monkeypatch.setenv(environment.TARGET, level)
    assert explain(SMALL, target).to_dict()["target"] == level
    assert load(SMALL, target).source.candidate == default_of(SMALL, detect_target(level))
    computes(load(SMALL, target))


def test_a_named_target_is_explained_but_not_run_elsewhere() -> None:
    foreign = named_target("aarch64" if detect_target().kind == "x86" else "x86-64-v3")
    if foreign.kind == "x86":
        assert explain(SMALL, foreign).target == foreign
    with pytest.raises(InvalidValueError, match=rf"target {foreign.name}: this machine .*choose"):
        load(SMALL, foreign)
    host = detect_target()
    beyond = replace(host, features=host.features | {"made-up"})
    with pytest.raises(InvalidValueError, match="lacks made-up"):
        load(SMALL, beyond)


@pytest.mark.parametrize("ask", [load, explain])
def test_bad_arguments(ask: Any) -> None:
    for workload in (None, {"head_dim": 64}, "head_dim=64"):
        with pytest.raises(InvalidTypeError, match="workload: expected an AttentionWorkload, got"):
            ask(workload)
    for target in (5, b"x86-64-v3", ["x86-64-v3"]):
        with pytest.raises(InvalidTypeError, match=r"target: expected a name.*got (int|by|list)"):
            ask(SMALL, target)
    with pytest.raises(InvalidValueError, match=r"warp9"):
        ask(SMALL, "warp9")


def test_bad_numbers_of_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InvalidValueError, match="num_threads: expected at least 1, got 0"):
        load(SMALL, num_threads=0)
    with pytest.raises(InvalidTypeError, match=r"num_threads: expected an int, got 1\.5"):
        load(SMALL, num_threads=1.5)  # type: ignore[arg-type]
    monkeypatch.setenv(environment.NUM_THREADS, "many")
    with pytest.raises(InvalidValueError, match=f"{environment.NUM_THREADS}: expected a whole"):
        load(SMALL)


def test_numbers_of_threads_give_the_same_results(monkeypatch: pytest.MonkeyPatch) -> None:
    q, k, v = inputs(SMALL)
    one = load(SMALL, num_threads=1)
    assert one.num_threads == 1
    expected = one(q, k, v)
    for count in (2, 3, 7):
        kernel = load(SMALL, num_threads=count)
        assert kernel is not one
        np.testing.assert_array_equal(kernel(q, k, v), expected)
    monkeypatch.setenv(environment.NUM_THREADS, "3")
    assert load(SMALL).num_threads == 3
    assert load(SMALL, num_threads=2).num_threads == 2


def test_a_kernel_is_loaded_once_and_by_any_thread() -> None:
    found: list[Any] = []
    threads = [threading.Thread(target=lambda: found.append(load(SMALL))) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 6
    assert len(set(map(id, found))) == 1
    assert load(SMALL.with_lengths(65, 66)) is found[0]  # served alike
    assert load(replace(SMALL, causal=True)) is not found[0]


IMPORTS = """
import sys
import tvm_attention
heavy = {"torch", "tvm", "tvm_ffi", "xgboost"} & set(sys.modules)
assert not heavy, f"import tvm_attention imports {heavy}"
import numpy as np
rows = np.ones((3, 16), np.float32)
out = tvm_attention.scaled_dot_product_attention(rows, rows, rows)
assert np.abs(out - 1).max() < 1e-6, out
heavy = {"torch", "xgboost"} & set(sys.modules)
assert not heavy, f"a call on NumPy arrays imports {heavy}"
"""


def test_imports_of_a_program_with_numpy_arrays() -> None:
    child = subprocess.run(
        [sys.executable, "-c", IMPORTS], env=os.environ, capture_output=True, text=True
    )
    assert child.returncode == 0, child.stderr
