"""The studies of selection and of searches: what they draw, compare, keep and conclude."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from bench import documentation, search_study, selection_regret, studies, tuning_quality
from bench.command import launcher
from bench.drawn_workloads import KINDS, MOST_BYTES, MOST_OPERATIONS, drawn_workloads
from bench.plausible import MOST, picked, rivals
from bench.result_journal import ResultJournal
from tvm_attention.errors import InvalidValueError
from tvm_attention.schedules import Candidate, schedules_for
from tvm_attention.suites import SUITES, suite
from tvm_attention.target import detect_target
from tvm_attention.tuning import strategy
from tvm_attention.tuning.place import Measurement
from tvm_attention.work import flops, kv_bytes
from tvm_attention.workload import AttentionWorkload

TINY = AttentionWorkload(head_dim=16, query_heads=2, query_length=40, key_length=40)


def test_drawn_workloads_are_new_varied_and_the_same_again() -> None:
    found = drawn_workloads(60, 4)
    assert found == drawn_workloads(60, 4)
    assert found != drawn_workloads(60, 5)
    assert len(set(found)) == 60
    assert not set(found) & {w for s in SUITES.values() for w in s.values()}
    assert {w.length_class for w in found} >= {"short", "medium", "long", "decode-r1", "decode-r4"}
    assert {w.dtype for w in found} == {"float32", "bfloat16", "float16"}
    assert any(w.causal for w in found)
    assert any(w.mask for w in found)
    assert all(flops(w) <= MOST_OPERATIONS and kv_bytes(w) <= MOST_BYTES for w in found)
    assert len(found) > len(KINDS)


@pytest.mark.parametrize("workload", drawn_workloads(12, 4), ids=lambda w: w.length_class)
def test_rivals_are_legal_and_none_is_the_picked_one(workload: AttentionWorkload) -> None:
    target = detect_target()
    taken = picked(workload, target)
    found = rivals(workload, target, taken)
    candidates = [r.candidate for r in found]
    assert len(set(candidates)) == len(candidates) <= MOST
    assert taken.candidate not in candidates
    schedules = schedules_for(target)
    space = schedules.design_space(workload, schedules.machine_parameters(target))
    assert all(space.refusal(c) is None for c in candidates)


def test_a_journal_goes_on_after_a_line_that_was_cut_short(tmp_path: Path) -> None:
    path = tmp_path / "new" / "j.jsonl"
    ResultJournal(path, {"study": "a"}).add("one", {"x": 1})
    with path.open("a") as file:
        file.write('{"key": "two", "res')
    journal = ResultJournal(path, {"study": "a"})
    assert journal.read() == {"one": {"x": 1}}
    journal.add("two", 2)
    assert ResultJournal(path, {"study": "a"}).read() == {"one": {"x": 1}, "two": 2}
    with pytest.raises(InvalidValueError, match="begin with a new file"):
        ResultJournal(path, {"study": "b"})
    with pytest.raises(InvalidValueError, match="expected a file that can be written"):
        ResultJournal(path / "below", {"study": "a"})


def _row(regret: float, length_class: str = "short") -> dict[str, Any]:
    rival = {"candidate": "running a=1", "target": "x", "origin": "default schedule"}
    return {
        "shape": "1x2x3x4x5", "length_class": length_class, "ms": 1.0, "regret": regret,
        "noise": 0.01, "picked": rival, "best": rival, "wrong": [],
    }  # fmt: skip


def test_regret_is_summed_up_by_class() -> None:
    rows = [_row(r) for r in (0.0, 0.02, 0.04)] + [_row(0.2, "long")]
    found = selection_regret.summary(rows)
    assert found["all"] == {
        "workloads": 4,
        "median": pytest.approx(0.03),
        "90 %": 0.2,
        "worst": 0.2,
    }
    assert found["short"]["median"] == 0.02
    assert found["long"]["worst"] == 0.2
    assert found["noise"] == 0.01


def test_regret_is_measured_in_slices(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = AttentionWorkload(head_dim=16, query_heads=2, query_length=48, key_length=44)
    monkeypatch.setattr(selection_regret, "drawn_workloads", lambda *_: [TINY, other])
    few = selection_regret.rivals
    monkeypatch.setattr(selection_regret, "rivals", lambda *a: few(*a)[:1])
    journal, path = tmp_path / "j.jsonl", tmp_path / "r.json"
    options = [
        "--journal",
        str(journal),
        "--json",
        str(path),
        "--seconds",
        "0.02",
        "--threads",
        "1",
    ]
    try:
        assert selection_regret.main([*options, "--slice", "1"]) == 0
        assert "1 workloads are left" in capsys.readouterr().out
        assert not path.exists()
        assert selection_regret.main(options) == 0
    finally:
        launcher().set_num_threads(None)
    written = json.loads(path.read_text())
    assert [r["shape"] for r in written["workloads"]] == ["1x2x40x40x16", "1x2x48x44x16"]
    for row in written["workloads"]:
        assert row["regret"] >= 0
        assert len(row["others"]) == 1
        assert not row["wrong"]
        assert not row["failed"]
    assert written["summary"]["all"]["workloads"] == 2
    assert "| all | 2 |" in studies.regret_table(written)
    assert studies.regret_picture(written).startswith("<svg")


class _StandInWorkers:
    """Times that a candidate's own numbers give."""

    built = 0

    def __init__(self, builders: int) -> None:
        pass

    def __enter__(self) -> _StandInWorkers:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def build(self, arguments: Sequence[tuple[Any, ...]]) -> list[tuple[Any, str]]:
        _StandInWorkers.built += len(arguments)
        return [("source", "") for _ in arguments]

    def measure(
        self, tasks: Sequence[Measurement], best: Callable[[], float]
    ) -> Iterator[tuple[int, tuple[float | None, str]]]:
        for number, task in enumerate(tasks):
            c = task.candidate
            seconds = 1e-3 * (1 + c["prefetch"] + c["score_keys"])
            yield number, (None, "crashed") if c["streams"] == 1 else (seconds, "")


class _NoModel:
    """Ranks as they come: the model has tests of its own."""

    def __init__(self, *_: object) -> None:
        pass

    def update(self, trials: object) -> None:
        pass

    def rank(self, candidates: Sequence[Candidate]) -> list[Candidate]:
        return list(candidates)


def test_searches_go_on_and_are_summed_up(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    name = "d128-decode-r4"
    monkeypatch.setattr(strategy, "CostModel", _NoModel)
    monkeypatch.setattr(tuning_quality, "LocalWorkers", _StandInWorkers)
    monkeypatch.setattr(
        search_study.Study, "_timed", lambda _, finalists: dict.fromkeys(finalists, 1.0)
    )
    journal, path = tmp_path / "j.jsonl", tmp_path / "q.json"
    options = ["--journal", str(journal), "--workloads", name, "--random", "4"]
    assert tuning_quality.main([*options, "--guided", "5"]) == 0
    assert _StandInWorkers.built == 9
    assert tuning_quality.main([*options, "--guided", "7", "--json", str(path)]) == 0
    assert _StandInWorkers.built == 11
    (row,) = json.loads(path.read_text())["workloads"]
    assert row["shape"] == "1x32/8x1x2048x128"
    curve = [p["share"] for p in row["curve"]]
    assert len(curve) == 7
    assert curve == sorted(curve)
    assert 0 < curve[0] <= 1
    assert set(row["reached"]) == {"95%", "99%"}
    assert "best of 4 at random" in row["finalists"]
    assert name in studies.search_table(json.loads(path.read_text()))
    assert studies.search_picture(json.loads(path.read_text())).startswith("<svg")
    assert "best of 7 trials" in capsys.readouterr().out
    assert name in suite("shipping")


def test_the_documentation_has_a_study_once_it_is_measured(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(documentation, "RESULTS", tmp_path)
    assert documentation.study("selection-regret") == ""
    rows = [_row(0.1)]
    found = {
        "machine": {"model": "Some CPU", "target": "x86-64-v4"}, "threads": 2, "seed": 4,
        "library": {"commit": "0123456789abcdef"}, "date": "2026-11-30",
        "summary": selection_regret.summary(rows), "workloads": rows,
    }  # fmt: skip
    (tmp_path / "selection-regret.json").write_text(json.dumps(found))
    shown = documentation.study("selection-regret")
    assert shown.startswith("<div class='picture'><svg")
    assert "| short | 1 | 10.0% | 10.0% | 10.0% |" in shown
