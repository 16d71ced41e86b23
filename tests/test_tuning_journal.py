"""The journal of trials: what it keeps, for whom, and what damage costs."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tvm_attention import environment
from tvm_attention.errors import TuningError
from tvm_attention.schedules import Candidate, schedules_for
from tvm_attention.target import named_target
from tvm_attention.tuning import journal as module
from tvm_attention.tuning.journal import Journal, Trial, journal_directory, journal_lines
from tvm_attention.workload import AttentionWorkload

WORKLOAD = AttentionWorkload(head_dim=64)
TARGET = named_target("icelake", cores=2)
CANDIDATE = Candidate.of("row_block", {"query_block": 32, "score_rows": 6})
GOOD = Trial(CANDIDATE, 1.2345678901234567e-3)
FAILED = Trial(CANDIDATE.replace(score_rows=4), None, "crashed (exit code -11)")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(environment.CACHE_DIR, str(tmp_path))
    return tmp_path / "journals"


def test_trials_come_back_as_they_were(folder: Path) -> None:
    assert journal_directory() == folder
    journal = Journal(WORKLOAD, TARGET, 2)
    assert journal.read() == ([], None)
    for trial in (GOOD, FAILED, GOOD):
        journal.add(trial)
    assert Journal(WORKLOAD, TARGET, 2).read() == ([GOOD, FAILED, GOOD], None)
    journal.end("all trials used")
    journal.add(FAILED)  # the same search with more trials
    journal.end("nothing improved any more")
    assert journal.read() == ([GOOD, FAILED, GOOD, FAILED], "nothing improved any more")
    assert list(folder.rglob("*.jsonl")) == [journal.path]
    assert not journal.again
    for _ in range(2):
        journal.start_again()
        assert journal.again
        assert journal.read() == ([], None)
    journal.add(GOOD)
    journal.end("all trials used")
    assert Journal(WORKLOAD, TARGET, 2).again
    assert journal.read() == ([GOOD], "all trials used")


def test_a_journal_says_what_it_is_of() -> None:
    for start in (Journal.prepare, Journal.start_again, lambda j: j.add(GOOD)):
        journal = Journal(WORKLOAD, TARGET, 2)
        start(journal)
        journal.add(GOOD)
        (said,) = [x for x in map(json.loads, journal_lines(journal.path)) if "search" in x]
        assert said["search"]["workload"] == WORKLOAD.to_dict()
        assert said["search"]["threads"] == 2
        assert said["search"]["target"] == TARGET.name
        journal.path.unlink()


def test_trials_after_an_end_take_it_back() -> None:
    journal = Journal(WORKLOAD, TARGET, 2)
    journal.add(GOOD)
    journal.end("all trials used")
    journal.add(FAILED)  # the same search with more trials, interrupted
    assert journal.read() == ([GOOD, FAILED], None)


def test_preparing_changes_nothing() -> None:
    journal = Journal(WORKLOAD, TARGET, 2)
    journal.prepare()
    assert journal.read() == ([], None)
    journal.add(GOOD)
    journal.prepare()
    assert journal.read() == ([GOOD], None)


@pytest.mark.parametrize("step", ["prepare", "start_again", "add", "end"])
def test_a_journal_that_cannot_be_written(
    step: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv(environment.CACHE_DIR, str(tmp_path / "file"))
    journal = Journal(WORKLOAD, TARGET, 2)
    arguments = {"add": (GOOD,), "end": ("all trials used",)}.get(step, ())
    with pytest.raises(TuningError, match=f"trials cannot be kept.*{environment.CACHE_DIR}"):
        getattr(journal, step)(*arguments)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full")
def test_a_disk_that_fills_up(folder: Path) -> None:
    journal = Journal(WORKLOAD, TARGET, 2)
    journal.path.parent.mkdir(parents=True)
    journal.path.symlink_to("/dev/full")
    with pytest.raises(TuningError, match="No space left"):
        journal.add(GOOD)


def test_other_measurements_have_other_journals(monkeypatch: pytest.MonkeyPatch) -> None:
    paths = [
        Journal(WORKLOAD, TARGET, 2).path,
        Journal(WORKLOAD, TARGET, 3).path,
        Journal(replace(WORKLOAD, causal=True), TARGET, 2).path,
        Journal(WORKLOAD.with_lengths(512, 513), TARGET, 2).path,
        Journal(WORKLOAD, named_target("zen4", cores=2), 2).path,
        Journal(WORKLOAD, replace(TARGET, model="Another CPU"), 2).path,
        Journal(WORKLOAD, replace(TARGET, l2=1 << 20), 2).path,
    ]
    with monkeypatch.context() as changed:
        changed.setattr(module, "EXPRESSIONS", {TARGET.kind: "f" * 16})
        paths.append(Journal(WORKLOAD, TARGET, 2).path)
    assert len(set(paths)) == len(paths)
    assert Journal(WORKLOAD, TARGET, 2).path == paths[0]


LINE = '{"decisions": {"query_block": 32}, "error": "", "seconds": 1e-3, "variant": "row_block"}'


@pytest.mark.parametrize(
    "bad",
    [
        LINE[:40],
        "",
        "{}",
        "[1, 2]",
        "null",
        "3",
        '"ended"',
        LINE.replace("32", "32.5"),
        LINE.replace("32", "true"),
        LINE.replace("32", "[32]"),
        LINE.replace("1e-3", '"fast"'),
        LINE.replace("1e-3", "NaN"),
        LINE.replace("1e-3", "-1.0"),
        LINE.replace("1e-3", "1e999"),
        LINE.replace("1e-3", "1" + "0" * 400),
        LINE.replace("1e-3", "9" * 5000),
        LINE.replace('"row_block"', "[1]"),
        LINE.replace('"row_block"', '"\\u001b[2J"'),
        LINE.replace('"error": ""', '"error": ["x"]'),
        "[" * 100_000,
        '{"ended": ["x"]}',
        '{"ended": "\\u001b[2J"}',
        LINE.replace('"error": "", ', ""),
        LINE.replace('{"query_block": 32}', "7"),
    ],
)
def test_a_damaged_line_costs_itself(bad: str) -> None:
    journal = Journal(WORKLOAD, TARGET, 2)
    journal.add(GOOD)
    with journal.path.open("a", encoding="utf-8") as file:
        file.write(bad)  # and no end of the line
    journal.add(FAILED)
    journal.end("all trials used")
    assert journal.read() == ([GOOD, FAILED], "all trials used")


def test_a_line_that_is_no_text_costs_itself() -> None:
    journal = Journal(WORKLOAD, TARGET, 2)
    journal.add(GOOD)
    header, trial = journal.path.read_bytes().splitlines()
    journal.path.write_bytes(b"\n".join([header, b"\xff\xfe" + trial, b""]))
    assert journal.read() == ([], None)
    journal.add(FAILED)
    assert journal.read() == ([FAILED], None)


def test_what_is_no_file_counts_as_empty(folder: Path) -> None:
    journal = Journal(WORKLOAD, TARGET, 2)
    journal.path.parent.mkdir(parents=True)
    os.mkfifo(journal.path)  # nobody will ever write to it
    assert journal.read() == ([], None)
    assert not journal.again


def test_a_reason_of_several_lines_is_kept_as_one() -> None:
    journal = Journal(WORKLOAD, TARGET, 2)
    journal.add(Trial(CANDIDATE, None, "wrong\n\x1b[2J" + "x" * 500))
    (trial,), _ = journal.read()
    assert trial.error.startswith("wrong  [2Jxx")
    assert len(trial.error) == 128


def test_trials_of_another_version_are_no_candidates_here() -> None:
    """A variant or a decision that is not known is refused, and no error."""
    schedules = schedules_for(TARGET)
    space = schedules.design_space(WORKLOAD, schedules.machine_parameters(TARGET))
    journal = Journal(WORKLOAD, TARGET, 2)
    journal.add(Trial(Candidate.of("spiral", {"query_block": 32}), 1e-3))
    journal.add(Trial(CANDIDATE.replace(score_rows=-1), 1e-3))
    trials, _ = journal.read()
    assert len(trials) == 2
    assert all(space.refusal(trial.candidate) for trial in trials)


def test_the_line_used_here_is_a_good_one() -> None:
    journal: Any = Journal(WORKLOAD, TARGET, 2)
    journal.path.parent.mkdir(parents=True)
    journal.path.write_text(LINE + "\n")
    assert journal.read() == ([Trial(Candidate.of("row_block", {"query_block": 32}), 1e-3)], None)
