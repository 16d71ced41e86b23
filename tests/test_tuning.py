"""Tuning: what is searched, journalled, confirmed and recorded, and what a bad candidate costs."""

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any

import pytest

import tvm_attention
from tvm_attention.database import read_log, user_log_path, write_log
from tvm_attention.errors import InvalidTypeError, InvalidValueError, TuningLogError
from tvm_attention.runtime import forget_kernels
from tvm_attention.schedules import Candidate, schedules_for
from tvm_attention.target import detect_target
from tvm_attention.tuning import session, this_machine, trials, workers, workload_session
from tvm_attention.tuning.confirmation import FINALISTS
from tvm_attention.tuning.journal import Journal, Trial
from tvm_attention.tuning.place import Measurement
from tvm_attention.tuning.trials import Finalist
from tvm_attention.workload import AttentionWorkload

WORKLOAD = AttentionWorkload(head_dim=32, query_heads=2, query_length=48, key_length=40)
TARGET = detect_target()


def default() -> Candidate:
    schedules = schedules_for(TARGET)
    return schedules.default_candidate(WORKLOAD, schedules.machine_parameters(TARGET))


def seconds_of(candidate: Candidate) -> float:
    """A made-up time: more query rows a block are slower, the default is slow."""
    return 1e-3 * candidate["query_block"] * (3 if candidate == default() else 1)


class FakeWorkers:
    """Workers that build nothing. ``interrupt_at`` is the measurement at which Ctrl-C comes."""

    interrupt_at: int | None = None
    measured = 0
    default_wins = False

    def __init__(self, builders: int) -> None:
        assert builders >= 1

    def __enter__(self) -> "FakeWorkers":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        return None

    def build(self, arguments: list[tuple[Any, ...]]) -> list[tuple[Any, str]]:
        return [(str(candidate), "") for _, _, candidate in arguments]

    def measure(self, tasks: list[Measurement], best: Any) -> Iterator[tuple[int, tuple[Any, str]]]:
        for number, task in enumerate(tasks):
            yield number, self.measured_one(task.candidate)

    def measured_one(self, candidate: Candidate) -> tuple[Any, str]:
        type(self).measured += 1
        if type(self).measured == type(self).interrupt_at:
            raise KeyboardInterrupt
        if dict(candidate.decisions).get("score_rows") == 4:
            return None, "wrong result"
        return seconds_of(candidate), ""

    def confirm(self, sources: Any, w: Any, candidates: list[Candidate], threads: int) -> Any:
        assert candidates[0] == default()
        assert 2 <= len(candidates) <= 1 + FINALISTS
        base = seconds_of(candidates[0])
        times = [seconds_of(c) for c in candidates]
        if self.default_wins:
            times = [base, *(2 * base for _ in candidates[1:])]
        return [Finalist(t, t / base, 0.9 * t / base, 1.1 * t / base) for t in times], ""


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> type[FakeWorkers]:
    class Fresh(FakeWorkers):
        pass

    monkeypatch.setattr(this_machine, "LocalWorkers", Fresh)
    monkeypatch.setenv("TVM_ATTENTION_CACHE_DIR", str(tmp_path / "cache"))
    return Fresh


def log_path(tmp_path: Path) -> Path:
    return tmp_path / TARGET.name / "tuned.jsonl"


def test_winner_is_recorded_and_served(
    fake: type[FakeWorkers], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    phases = []
    result = tvm_attention.tune(
        WORKLOAD, trials=24, log=log_path(tmp_path), progress=lambda p: phases.append(p)
    )
    (record,) = read_log(log_path(tmp_path))
    assert result.records == (record,)
    assert not result.interrupted
    assert record.ratio < 1
    assert record.decisions != dict(default().decisions)
    assert record.workload == WORKLOAD
    assert [p.phase for p in phases[-2:]] == ["confirm", "done"]
    assert phases[-1].trial == 24
    assert set(phases[-1].failures) <= {"wrong result"}
    monkeypatch.setenv("TVM_ATTENTION_LOG_DIR", str(tmp_path))
    forget_kernels()
    assert tvm_attention.explain(WORKLOAD).source.record == record
    forget_kernels()


def test_default_schedule_is_confirmed_when_nothing_beats_it(
    fake: type[FakeWorkers], tmp_path: Path
) -> None:
    fake.default_wins = True
    result = tvm_attention.tune(WORKLOAD, trials=8, log=log_path(tmp_path))
    (record,) = read_log(log_path(tmp_path))
    assert record.ratio == 1
    assert Candidate.of(record.variant, record.decisions) == default()
    assert "default schedule confirmed" in result.outcomes[0].reason


def test_interrupted_run_resumes_and_a_finished_one_is_skipped(
    fake: type[FakeWorkers], tmp_path: Path
) -> None:
    fake.interrupt_at = 6
    first = tvm_attention.tune(WORKLOAD, trials=16, log=log_path(tmp_path))
    assert first.interrupted
    assert not log_path(tmp_path).exists()
    fake.interrupt_at = None
    fake.measured = 0
    second = tvm_attention.tune(WORKLOAD, trials=16, log=log_path(tmp_path))
    assert not second.interrupted
    assert fake.measured == 16 - 5
    assert len(second.records) == 1
    fake.measured = 0
    third = tvm_attention.tune(WORKLOAD, trials=16, log=log_path(tmp_path))
    assert fake.measured == 0
    assert third.records == ()
    assert "already tuned" in third.outcomes[0].reason
    assert "again" in third.outcomes[0].reason
    write_log(log_path(tmp_path), [])
    fourth = tvm_attention.tune(WORKLOAD, trials=16, log=log_path(tmp_path))
    assert fake.measured == 0
    assert len(fourth.records) == 1


def test_more_trials_that_were_interrupted_are_confirmed_later(
    fake: type[FakeWorkers], tmp_path: Path
) -> None:
    tvm_attention.tune(WORKLOAD, trials=8, log=log_path(tmp_path))
    fake.interrupt_at = fake.measured + 9
    assert tvm_attention.tune(WORKLOAD, trials=24, log=log_path(tmp_path)).interrupted
    fake.interrupt_at = None
    result = tvm_attention.tune(WORKLOAD, trials=16, log=log_path(tmp_path))
    assert result.outcomes[0].trials == 16
    (record,) = result.records
    assert record.provenance["trials"] == 16


def test_the_search_is_not_ended_before_its_record_is_in_the_log(
    fake: type[FakeWorkers], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tvm_attention.tune(WORKLOAD, trials=4, log=log_path(tmp_path))
    log_path(tmp_path).unlink()

    def full(*_: Any, **__: Any) -> None:
        raise TuningLogError("no space left")

    with monkeypatch.context() as broken:
        broken.setattr(workload_session, "merge_into_log", full)
        with pytest.raises(TuningLogError):
            tvm_attention.tune(WORKLOAD, trials=8, log=log_path(tmp_path))
    assert Journal(WORKLOAD, TARGET, TARGET.cores).read()[1] is None
    fake.measured = 0
    assert len(tvm_attention.tune(WORKLOAD, trials=8, log=log_path(tmp_path)).records) == 1
    assert fake.measured == 0


def test_again_measures_anew_and_replaces_the_record(
    fake: type[FakeWorkers], tmp_path: Path
) -> None:
    tvm_attention.tune(WORKLOAD, trials=8, log=log_path(tmp_path))
    (fast,) = read_log(log_path(tmp_path))
    fake.measured, fake.default_wins = 0, True
    fake.interrupt_at = 4
    other = WORKLOAD.with_lengths(40, 48)
    asked = ([WORKLOAD, other], None)
    assert tvm_attention.tune(
        *asked, trials=8, log=log_path(tmp_path), seed=5, again=True
    ).interrupted
    assert read_log(log_path(tmp_path)) == (fast,)
    fake.interrupt_at = None
    # Without ``again``: what was asked afresh stays so, and goes on where it was.
    result = tvm_attention.tune(*asked, trials=8, log=log_path(tmp_path), seed=5)
    assert fake.measured == 1 + 8 + 8
    assert [outcome.kept for outcome in result.outcomes] == [True, True]
    assert {r.workload: r.ratio for r in read_log(log_path(tmp_path))} == {WORKLOAD: 1, other: 1}


def test_a_record_that_is_not_as_fast_as_the_present_one_is_not_kept(
    fake: type[FakeWorkers], tmp_path: Path
) -> None:
    tvm_attention.tune(WORKLOAD, trials=8, log=log_path(tmp_path))
    (fast,) = read_log(log_path(tmp_path))
    fake.default_wins = True
    result = tvm_attention.tune(WORKLOAD, trials=9, log=log_path(tmp_path))
    assert result.records == ()
    assert not result.outcomes[0].kept
    assert "an earlier record is as fast or faster" in result.outcomes[0].reason
    assert read_log(log_path(tmp_path)) == (fast,)


def test_a_foreign_line_in_the_journal_is_no_trial(fake: type[FakeWorkers], tmp_path: Path) -> None:
    journal = Journal(WORKLOAD, TARGET, TARGET.cores)
    journal.add(Trial(Candidate.of("of_another_version", {"query_block": 32}), 1e-9))
    journal.add(Trial(Candidate.of(default().variant, {"query_block": 32}), 1e-9))
    result = tvm_attention.tune(WORKLOAD, trials=4, log=log_path(tmp_path))
    assert fake.measured == 4
    assert result.outcomes[0].trials == 4


def test_one_trial_is_the_default_schedule_only(fake: type[FakeWorkers], tmp_path: Path) -> None:
    result = tvm_attention.tune(WORKLOAD, trials=1, log=log_path(tmp_path))
    reason = result.outcomes[0].reason
    assert reason == "nothing but the default schedule ran; give the search more trials"


def test_when_nothing_ran_the_reasons_are_said(
    fake: type[FakeWorkers], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fake, "measured_one", lambda *_: (None, "timed out"))
    result = tvm_attention.tune(WORKLOAD, trials=3, log=log_path(tmp_path))
    assert result.outcomes[0].reason == "no candidate ran, 3 timed out"


def test_builds_are_reported_before_they_are_made(fake: type[FakeWorkers], tmp_path: Path) -> None:
    phases: list[str] = []
    seen: list[str] = []

    class Watched(fake):  # type: ignore[valid-type, misc]
        def build(self, arguments: list[tuple[Any, ...]]) -> list[tuple[Any, str]]:
            seen.append(phases[-1])
            return FakeWorkers.build(self, arguments)

    this_machine.LocalWorkers = Watched  # type: ignore[misc]  # put back by the fixture
    tvm_attention.tune(
        WORKLOAD, trials=12, log=log_path(tmp_path), progress=lambda p: phases.append(p.phase)
    )
    assert phases[0] == "build"
    assert seen == ["build", "build", "confirm"]


@pytest.mark.parametrize(
    "broken", ["cache", "log", "folder", "damaged", "target", "limit", "memory"]
)
def test_what_would_stop_a_run_later_stops_it_at_once(
    broken: str, fake: type[FakeWorkers], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, workload = log_path(tmp_path), WORKLOAD
    (tmp_path / "file").touch()
    if broken == "cache":
        monkeypatch.setenv("TVM_ATTENTION_CACHE_DIR", str(tmp_path / "file"))
    elif broken == "log":
        log = tmp_path / "file" / "tuned.jsonl"
    elif broken == "folder":
        log = tmp_path
    elif broken == "damaged":
        log = tmp_path / "file"
    elif broken == "target":
        log = user_log_path("zen5")
    elif broken == "limit":
        monkeypatch.setenv("TVM_ATTENTION_CACHE_LIMIT_MB", "much")
    else:
        workload = AttentionWorkload(head_dim=512, query_heads=2**30, query_length=2**30)
    with pytest.raises(tvm_attention.AttentionError):
        tvm_attention.tune(workload, trials=4, log=log)
    assert fake.measured == 0
    assert list(tmp_path.rglob("*.jsonl")) == []


def test_without_xgboost_one_line_says_what_to_install(
    fake: type[FakeWorkers], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "find_spec", lambda name: None)
    with pytest.raises(tvm_attention.TuningError, match="pip install xgboost"):
        tvm_attention.tune(WORKLOAD, trials=4, log=log_path(tmp_path))


def test_journal_skips_a_line_cut_short(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TVM_ATTENTION_CACHE_DIR", str(tmp_path))
    journal = Journal(WORKLOAD, TARGET, 2)
    good = Trial(default(), 1e-3)
    journal.add(good)
    with journal.path.open("a") as file:
        file.write('{"variant": "row_bl')
    failed = Trial(default().replace(query_block=64), None, "timed out")
    journal.add(failed)
    assert journal.read() == ([good, failed], None)
    journal.end("all trials used")
    assert Journal(WORKLOAD, TARGET, 2).read() == ([good, failed], "all trials used")
    assert Journal(WORKLOAD, TARGET, 1).read() == ([], None)
    assert all(json.loads(line) for line in journal.path.read_text().splitlines() if "bl\n" in line)


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"trials": 0}, InvalidValueError),
        ({"minutes": 0}, InvalidValueError),
        ({"minutes": float("nan")}, InvalidValueError),
        ({"num_threads": 0}, InvalidValueError),
        ({"num_threads": 1.5}, InvalidTypeError),
        ({"target": "x86-64-v9"}, InvalidValueError),
    ],
)
def test_bad_budget(arguments: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error, match="expected"):
        tvm_attention.tune(WORKLOAD, **arguments)


def crash(*_: Any) -> float:
    os._exit(7)


def hang(*_: Any) -> float:
    time.sleep(600)
    return 0.0


def test_a_candidate_that_crashes_or_hangs_costs_only_itself(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(workers, "MEASURE_TIMEOUT", 1.0)
    with workers.LocalWorkers(1) as pool:
        pool._runner.schedule(abs, (1,)).result()  # so that only the task itself is timed
        assert pool._timed(crash, (), 30.0)[1].startswith("crashed")
        assert pool._timed(hang, (), 1.0) == (None, "timed out")
        assert pool._timed(abs, (-3,), 30.0) == (3, "")


def test_real_tuning_of_a_small_workload(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TVM_ATTENTION_CACHE_DIR", str(tmp_path / "cache"))
    result = tvm_attention.tune(WORKLOAD, trials=3, log=log_path(tmp_path))
    (outcome,) = result.outcomes
    assert outcome.trials == 3
    assert outcome.kept
    assert outcome.tuned is not None
    assert outcome.tuned > 0
    (record,) = read_log(log_path(tmp_path))
    assert record.provenance["trials"] == 3


@pytest.mark.parametrize(
    "fields",
    [
        {"paged": True, "ragged": True, "kv_dtype": "int8", "causal": "bottom_right"},
        {"ragged": True, "mask": "float32", "mask_dense": True, "output": "attention_and_lse"},
    ],
    ids=lambda x: " ".join(x),
)
def test_real_tuning_of_stored_and_ragged_keys(
    fields: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TVM_ATTENTION_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("TVM_ATTENTION_LOG_DIR", str(tmp_path))
    lengths = {"query_length": 20, "key_length": 40}
    workload = AttentionWorkload(head_dim=16, batch=2, query_heads=2, **(lengths | fields))
    failures: dict[str, int] = {}
    result = tvm_attention.tune(
        workload, trials=3, log=log_path(tmp_path), progress=lambda p: failures.update(p.failures)
    )
    assert failures == {}
    (record,) = read_log(log_path(tmp_path))
    assert result.records == (record,)
    assert record.workload == workload
    assert tvm_attention.explain(workload).source.record == record


def test_a_wrong_kernel_is_refused() -> None:
    source = trials.build(WORKLOAD, TARGET, default())
    other = AttentionWorkload(
        head_dim=32, query_heads=2, query_length=48, key_length=40, causal=True
    )
    with pytest.raises(tvm_attention.TuningError, match="wrong result"):
        trials.measure(source, other, default(), 1, float("inf"))
