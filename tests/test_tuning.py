"""Tuning: what is searched, journalled, confirmed and recorded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from fake_workers import TARGET, WORKLOAD, FakeWorkers, default, faked, log_path

import tvm_attention
from tvm_attention.database import read_log, write_log
from tvm_attention.errors import TuningLogError
from tvm_attention.runtime import forget_kernels
from tvm_attention.schedules import Candidate
from tvm_attention.tuning import this_machine, workload_session
from tvm_attention.tuning.journal import Journal, Trial


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> type[FakeWorkers]:
    return faked(monkeypatch, tmp_path)


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
