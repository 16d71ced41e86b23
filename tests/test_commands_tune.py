"""tune: what it asks of the search, what it shows, and how it ends."""

from __future__ import annotations

import io
import json
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from command_logs import legal_record
from rich.console import Console

from tvm_attention.__main__ import main
from tvm_attention.commands import tune as command
from tvm_attention.commands.tune_progress import FinishedLines, LivePicture, view
from tvm_attention.database import user_log_path
from tvm_attention.schedules import Candidate
from tvm_attention.suites import suite
from tvm_attention.tuning import TuningOutcome, TuningProgress, TuningResult
from tvm_attention.workload import AttentionWorkload

TEXT = "head_dim=64,query_heads=2,query_length=128,key_length=128"
WORKLOAD = AttentionWorkload.from_text(TEXT)
CANDIDATE = Candidate.of("row_block", {"query_block": 32})


def _progress(**more: Any) -> TuningProgress:
    values: dict[str, Any] = {
        "workload": WORKLOAD,
        "index": 0,
        "count": 1,
        "phase": "search",
        "trial": 3,
        "trials": 8,
        "best": 1.25e-3,
        "default": 2e-3,
        "failures": {},
        "elapsed": 5.0,
        "remaining": 70.0,
    }
    return TuningProgress(**{**values, **more})


def _outcome(**more: Any) -> TuningOutcome:
    values: dict[str, Any] = {
        "workload": WORKLOAD,
        "best": CANDIDATE,
        "tuned": 1.25e-3,
        "default": 2e-3,
        "kept": True,
        "reason": "1.60 times the default schedule's speed",
        "trials": 8,
    }
    return TuningOutcome(**{**values, **more})


class StandIn:
    """Takes the place of tune(): reports some moments and gives a result, or raises."""

    def __init__(self, **result: Any) -> None:
        self.asked: dict[str, Any] = {}
        self.error: BaseException | None = None
        self.result = {
            "records": (legal_record(),),
            "outcomes": (_outcome(),),
            "log": Path("folder/tuned.jsonl"),
            "interrupted": False,
            **result,
        }

    def __call__(
        self,
        workloads: list[AttentionWorkload],
        target: str | None,
        *,
        progress: Callable[[TuningProgress], None],
        **asked: Any,
    ) -> TuningResult:
        self.asked = {"workloads": workloads, "target": target, **asked}
        batches = (("build", 0), ("search", 1), ("build", 1), ("search", 2))
        for phase, trial in (*batches, ("confirm", 8), ("done", 8)):
            progress(_progress(phase=phase, trial=trial))
        if self.error is not None:
            raise self.error
        return TuningResult(**self.result)


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch) -> StandIn:
    made = StandIn()
    monkeypatch.setattr(command, "tune", made)
    return made


def test_defaults(stand_in: StandIn) -> None:
    assert main(["tune", "--workload", TEXT]) == 0
    assert stand_in.asked == {
        "workloads": [WORKLOAD],
        "target": None,
        "trials": 64,
        "minutes": None,
        "log": None,
        "num_threads": None,
        "seed": 0,
        "again": False,
        "on": None,
    }


def test_all_arguments(stand_in: StandIn) -> None:
    budget = ["--trials", "7", "--minutes", "1.5", "--threads", "2", "--seed", "3", "--again"]
    asked = ["--suite", "demo", "--target", "x86-64-v3", "--log", "my.jsonl", *budget]
    demo = suite("demo").values()
    stand_in.result["outcomes"] = tuple(_outcome(workload=w) for w in demo)
    assert main(["tune", *asked]) == 0
    assert stand_in.asked == {
        "workloads": list(demo),
        "target": "x86-64-v3",
        "trials": 7,
        "minutes": 1.5,
        "log": Path("my.jsonl"),
        "num_threads": 2,
        "seed": 3,
        "again": True,
        "on": None,
    }


def test_finished_workloads_and_table(
    stand_in: StandIn, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["tune", "--workload", TEXT]) == 0
    captured = capsys.readouterr()
    lines = [line for line in captured.out.splitlines() if line.startswith("1/1 ")]
    assert [line.split(": ")[1] for line in lines] == ["done"]  # no progress where no terminal is
    assert "trial 8 of 8, best so far 1.25 ms, default 2 ms" in lines[0]
    assert "time left" not in lines[0]
    for expected in ("1x2x128x128x64", "row_block", "yes", "1.60 times"):
        assert expected in captured.out
    assert "1 record written to folder/tuned.jsonl" in captured.out
    assert captured.err.startswith("note: kernels are not chosen from folder/tuned.jsonl; ")
    assert captured.err.count("\n") == 1
    assert "\x1b" not in captured.out


def test_json(stand_in: StandIn, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tune", "--workload", TEXT, "--json"]) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    said = json.loads(captured.out)
    assert said["log"] == "folder/tuned.jsonl"
    assert said["records"] == [legal_record().to_dict()]
    (outcome,) = said["outcomes"]
    assert outcome["workload"] == WORKLOAD.to_dict()
    assert (outcome["tuned"], outcome["default"], outcome["kept"]) == (1.25e-3, 2e-3, True)
    assert outcome["decisions"] == {"query_block": 32}
    assert (said["interrupted"], said["not_reached"]) == (False, 0)
    stand_in.result |= {
        "interrupted": True,
        "outcomes": (_outcome(best=None, tuned=None, default=None),),
        "records": (),
    }
    assert main(["tune", "--workload", TEXT, "--json"]) == 130
    said = json.loads(capsys.readouterr().out)
    assert (said["interrupted"], said["records"]) == (True, [])
    assert said["outcomes"][0]["variant"] is None


def test_records_that_are_served_need_no_note(
    stand_in: StandIn, capsys: pytest.CaptureFixture[str]
) -> None:
    stand_in.result["log"] = user_log_path("x86-64-v3")
    assert main(["tune", "--workload", TEXT]) == 0
    assert capsys.readouterr().err == ""


def test_nothing_kept(stand_in: StandIn, capsys: pytest.CaptureFixture[str]) -> None:
    stand_in.result["records"] = ()
    stand_in.result["outcomes"] = (
        _outcome(best=None, tuned=None, default=None, kept=False, reason="no candidate ran"),
    )
    assert main(["tune", "--workload", TEXT]) == 0
    text = capsys.readouterr().out
    assert "no candidate ran" in text
    assert "no records written" in text


def test_time_ran_out(stand_in: StandIn, capsys: pytest.CaptureFixture[str]) -> None:
    workloads = list(suite("demo").values())
    stand_in.result["outcomes"] = (_outcome(workload=workloads[0]),)
    assert main(["tune", "--suite", "demo"]) == 0
    left = len(workloads) - 1
    assert f"{left} workloads not reached in the time given" in capsys.readouterr().out


@pytest.mark.parametrize("inside", [True, False])
def test_interrupted(stand_in: StandIn, inside: bool, capsys: pytest.CaptureFixture[str]) -> None:
    if inside:
        stand_in.result |= {"interrupted": True, "outcomes": (), "records": ()}
    else:
        stand_in.error = KeyboardInterrupt()
    arguments = ["tune", "--workload", TEXT, "--log", "my logs.jsonl"]
    assert main(arguments) == 130
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert said.startswith("interrupted")
    again = shlex.split(said[said.index("tvm-attention tune") :])
    assert again == ["tvm-attention", *arguments]
    assert main([*arguments, "--again"]) == 130
    again = shlex.split(capsys.readouterr().err.partition("go on: ")[2])
    assert again == ["tvm-attention", *arguments]  # what is afresh is not begun once more


def test_a_line_once_a_workload() -> None:
    out = io.StringIO()
    lines = FinishedLines(Console(file=out, width=200), {WORKLOAD: "bert"})
    for index in (0, 1):
        for phase in ("search", "skipped", "skipped"):
            lines(_progress(index=index, count=2, phase=phase))
    said = [line.split(": ")[:2] for line in out.getvalue().splitlines()]
    shape = "bert 1x2x128x128x64"
    assert said == [[f"{n}/2 {shape}", "skipped"] for n in (1, 2)]


def _picture(picture: LivePicture) -> str:
    out = io.StringIO()
    Console(file=out, width=100).print(picture)
    return out.getvalue()


def test_live_picture_runs_on() -> None:
    now = [100.0]
    picture = LivePicture({WORKLOAD: "bert"}, clock=lambda: now[0])
    assert "starting" in _picture(picture)
    failures = {"timed out": 1, "wrong result": 4}
    picture.update(_progress(failures=failures))
    now[0] += 65
    text = _picture(picture)
    for expected in ("3 of 8", "1.25 ms", "2 ms", "4 wrong result, 1 timed out", "1 min 10 s"):
        assert expected in text
    assert "at most 5 s" in text
    now[0] += 65
    assert "at most 0 s" in _picture(picture)
    picture.update(_progress(phase="done"))
    assert "1 of 1 workload done" in _picture(picture)


def test_live_view_leaves_a_line_for_each_finished_workload() -> None:
    out = io.StringIO()
    terminal = Console(file=out, force_terminal=True, width=120, color_system=None)
    with view(terminal, {WORKLOAD: "bert"}) as show:
        for phase in ("search", "confirm", "done"):
            show(_progress(phase=phase))
    last = out.getvalue()
    assert "bert 1x2x128x128x64: done: trial 3 of 8" in last
    assert "bert 1x2x128x128x64: confirm: trial" not in last
