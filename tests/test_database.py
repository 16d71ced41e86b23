"""Tuning logs on disk: round trip, folders, several writers, failed writes."""

from __future__ import annotations

import multiprocessing
import os
import warnings
from importlib import resources
from pathlib import Path

import pytest
from tuning_records import DIGEST, record, several

from tvm_attention import environment
from tvm_attention.database import (
    available_logs,
    format_log,
    logs,
    merge_into_log,
    prune_log,
    read_log,
    require_mergeable,
    searched_target,
    shipped_logs,
    user_log_path,
    user_logs,
    warn_of_refusals,
    write_log,
)
from tvm_attention.errors import InvalidValueError, TuningLogError, TuningLogWarning

TORN = format_log([record()])[:-9]


@pytest.fixture
def user_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv(environment.LOG_DIR, str(tmp_path))
    return tmp_path


def test_log_round_trip(tmp_path: Path) -> None:
    path = tmp_path / "new" / "folder" / "tuned.jsonl"
    write_log(path, several())
    found = read_log(path)
    assert len(found) == 3
    assert all(one in found for one in several())
    again = tmp_path / "again.jsonl"
    write_log(again, reversed(found))
    assert again.read_bytes() == path.read_bytes()


def test_size_bound(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    write_log(path, several())
    monkeypatch.setattr("tvm_attention.database.lines.MAX_LOG_BYTES", 200)
    with pytest.raises(TuningLogError, match="at most 200 bytes"):
        read_log(path)
    with pytest.raises(TuningLogError, match=r"at most 200 bytes.*prune"):
        write_log(path, several())


def test_what_is_no_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.jsonl")
    for name in ("pipe.jsonl", "absent.jsonl", "."):
        with pytest.raises(TuningLogError, match="expected a file"):
            read_log(tmp_path / name)


def test_user_logs_keep_damaged_ones_with_the_reason(user_folder: Path) -> None:
    write_log(user_log_path("icelake"), [record()])
    write_log(user_log_path("zen4", "foreign"), [record()])
    (user_folder / "zen4" / "bad.jsonl").write_bytes(TORN)
    (user_folder / "zen4" / "notes.txt").write_text("no log")
    (user_folder / "loose.jsonl").write_bytes(format_log([record()]))
    good, bad, foreign = user_logs()
    assert (good.name, good.records, good.refusal) == (
        *("user icelake/tuned.jsonl", (record(),), None),
    )
    assert bad.records == foreign.records == ()
    assert bad.refusal is not None
    assert bad.refusal.startswith("user zen4/bad.jsonl: line 2: expected JSON")
    assert foreign.refusal is not None
    assert "target: expected 'zen4', got 'icelake'" in foreign.refusal


def test_user_folder_absent_or_no_folder(
    monkeypatch: pytest.MonkeyPatch, user_folder: Path
) -> None:
    monkeypatch.setenv(environment.LOG_DIR, str(user_folder / "absent"))
    assert user_logs() == ()
    (user_folder / "file").write_text("")
    monkeypatch.setenv(environment.LOG_DIR, str(user_folder / "file"))
    (only,) = user_logs()
    assert "cannot be read" in (only.refusal or "")


@pytest.mark.parametrize("name", ["", "..", "a/b", "../a", "A", "a\n", "a" * 65, ".hidden"])
def test_path_like_names_make_no_path(user_folder: Path, name: str) -> None:
    with pytest.raises(InvalidValueError, match="target"):
        user_log_path(name)
    with pytest.raises(InvalidValueError, match="log name"):
        user_log_path("icelake", name)


def test_shipped_logs_are_sound(user_folder: Path) -> None:
    assert [log.refusal for log in shipped_logs() if log.refusal] == []
    write_log(user_log_path("icelake"), [record()])
    assert available_logs() == (*user_logs(), *shipped_logs())
    assert available_logs()[0].user


def test_merging_may_replace(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    fast, slow = record(tuned=1e-3), record(tuned=1.5e-3)
    other = record(threads=1)
    write_log(path, [fast, other])
    merged = merge_into_log(path, [slow])
    assert len(merged) == 2
    assert slow not in merged
    merged = merge_into_log(path, [slow], replace=True)
    assert len(merged) == 2
    assert all(kept in merged for kept in (slow, other))
    assert read_log(path) == merged


def test_a_log_that_cannot_be_merged_into_is_known_before(tmp_path: Path) -> None:
    path = tmp_path / "new" / "a.jsonl"
    require_mergeable(path)
    assert not path.exists()
    write_log(path, [record()])
    before = path.read_bytes()
    require_mergeable(path)
    assert path.read_bytes() == before
    assert [p.name for p in path.parent.iterdir() if "lock" not in p.name] == ["a.jsonl"]
    path.write_bytes(TORN)
    for bad in (path, tmp_path, path / "b.jsonl"):
        with pytest.raises(TuningLogError):
            require_mergeable(bad)


def test_searched_target(user_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert searched_target(user_log_path("zen4")) == "zen4"
    assert searched_target(user_folder / "zen4" / "other.jsonl") == "zen4"
    for name in ("loose.jsonl", "zen4/deep/a.jsonl", "zen4/a.json"):
        assert searched_target(user_folder / name) is None
    monkeypatch.chdir(user_folder)
    assert searched_target(Path("zen4/a.jsonl")) == "zen4"
    assert searched_target(Path("a.jsonl")) is None
    shipped = Path(str(resources.files("tvm_attention.tuning_logs")))
    assert searched_target(shipped / "icelake" / "measured.jsonl") == "icelake"


def test_refusals_are_warned_of_once(user_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "_warned", set())
    write_log(user_log_path("icelake"), [record()])
    (user_folder / "icelake" / "bad.jsonl").write_bytes(TORN)
    with pytest.warns(TuningLogWarning, match=r"user icelake/bad\.jsonl: line 2: ") as caught:
        warn_of_refusals(user_logs())
    assert len(caught) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warn_of_refusals(user_logs())


def test_prune_log(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    stale = record(expression="f" * 16)
    write_log(path, [record(), stale])
    assert prune_log(path, DIGEST) == [(stale, "expression changed")]
    assert read_log(path) == (record(),)
    before = path.stat().st_mtime_ns
    assert prune_log(path, DIGEST) == []
    assert path.stat().st_mtime_ns == before


def _merge_some(path: str, threads: list[int]) -> None:
    for count in threads:
        merge_into_log(Path(path), [record(threads=count)])


def test_concurrent_writers_lose_nothing(tmp_path: Path) -> None:
    path = tmp_path / "icelake" / "tuned.jsonl"
    context = multiprocessing.get_context("spawn")
    shares = [list(range(start, start + 8)) for start in (1, 9, 17)]
    writers = [context.Process(target=_merge_some, args=(str(path), s)) for s in shares]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert [writer.exitcode for writer in writers] == [0, 0, 0]
    assert {one.threads for one in read_log(path)} == set(range(1, 25))
    assert {f.name for f in path.parent.iterdir()} <= {"tuned.jsonl", ".tuned.jsonl.lock"}


def test_merge_into_log_returns_what_it_holds(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    assert merge_into_log(path, [record()]) == (record(),)
    both = merge_into_log(path, [record(threads=1), record(tuned=1.9e-3)])
    assert both == read_log(path)
    assert sorted(one.threads for one in both) == [1, 2]


def test_a_damaged_log_is_not_merged_over(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(TORN)
    for change in (lambda: merge_into_log(path, [record()]), lambda: prune_log(path)):
        with pytest.raises(TuningLogError, match="line 2"):
            change()
        assert path.read_bytes() == TORN


def test_a_failed_write_leaves_the_old_log(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    write_log(path, [record()])

    def fail(source: object, destination: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(TuningLogError, match=r"cannot be written: .*No space"):
        write_log(path, several())
    assert read_log(path) == (record(),)
    assert {f.name for f in tmp_path.iterdir()} <= {"a.jsonl", ".a.jsonl.lock"}
