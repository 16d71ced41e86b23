"""logs list, merge and prune."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import pytest
from command_logs import SMALL, damage, legal_record, write_user_log
from tuning_records import DIGEST

from tvm_attention import environment
from tvm_attention.__main__ import main
from tvm_attention.commands import output
from tvm_attention.database import read_log, user_log_path, write_log


@pytest.fixture(autouse=True)
def folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv(environment.LOG_DIR, str(tmp_path / "logs"))
    return tmp_path / "logs"


def _listed(capsys: pytest.CaptureFixture[str], *arguments: str) -> list[dict[str, Any]]:
    assert main(["logs", "list", "--json", *arguments]) == 0
    logs: list[dict[str, Any]] = json.loads(capsys.readouterr().out)["logs"]
    return logs


def test_list_shows_each_record(capsys: pytest.CaptureFixture[str]) -> None:
    record = legal_record("zen4", tuned=1e-3, default=1.5e-3)
    write_user_log(record)
    write_user_log(legal_record("x86-64-v3", expression=DIGEST))
    damage(user_log_path("icelake"))
    assert main(["logs", "list", "--user"]) == 0
    text = capsys.readouterr().out
    shape, on = "1x2x64x64x16", "measured on Made-up CPU, 64 trials"
    where, variant = "user zen4/tuned", record.variant
    for expected in ("zen4", shape, variant, "1.50x", on, "2025-01-31", where):
        assert expected in text
    assert text.count("of another expression") == 1
    assert text.count("refused: user icelake/tuned.jsonl") == 1


def test_list_as_json_by_target(capsys: pytest.CaptureFixture[str]) -> None:
    record = legal_record("zen4", tuned=1e-3, default=1.5e-3)
    write_user_log(record)
    write_user_log(legal_record("zen5"))
    damage(user_log_path("zen4", "worse"))
    damage(user_log_path("zen5", "worse"))
    assert [log["name"] for log in _listed(capsys, "--user")] == [
        "user zen4/tuned.jsonl",
        "user zen4/worse.jsonl",
        "user zen5/tuned.jsonl",
        "user zen5/worse.jsonl",
    ]
    good, bad = _listed(capsys, "--user", "--target", "zen4")
    assert good["refusal"] is None
    (found,) = good["records"]
    assert found.pop("speedup") == pytest.approx(1.5)
    assert found == record.to_dict()
    assert bad["name"] == "user zen4/worse.jsonl"
    assert "line 2" in bad["refusal"]


def test_list_of_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "mine.jsonl"
    write_log(path, [legal_record("zen4"), legal_record("zen5")])
    (log,) = _listed(capsys, "--log", str(path))
    assert (log["name"], len(log["records"])) == (str(path), 2)
    (log,) = _listed(capsys, "--log", str(path), "--target", "zen5")
    assert [r["target"] for r in log["records"]] == ["zen5"]
    assert main(["logs", "list", "--user"]) == 0
    assert capsys.readouterr().out == "no records\n"


def test_merge_keeps_the_fastest(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    slow, fast = legal_record(tuned=1.5e-3), legal_record(tuned=1e-3)
    other = legal_record(workload=SMALL.with_lengths(128, 128))
    paths = [tmp_path / name for name in ("a.jsonl", "b.jsonl", "into.jsonl")]
    for path, records in zip(paths, ([slow], [fast, other], [slow]), strict=True):
        write_log(path, records)
    a, b, into = map(str, paths)
    assert main(["logs", "merge", a, b, "--into", into]) == 0
    assert set(map(str, read_log(paths[2]))) == {str(fast), str(other)}
    assert {r.seconds["tuned"] for r in read_log(paths[2])} == {1e-3}
    captured = capsys.readouterr()
    assert captured.out == f"{into}: 2 records of x86-64-v3, 2 of them new\n"
    assert captured.err.startswith(f"note: kernels are not chosen from {into}; ")
    assert captured.err.count("\n") == 1
    command = shlex.split(captured.err[captured.err.index("tvm-attention ") :])
    assert main(command[1:]) == 0  # what the note says to do
    assert capsys.readouterr().err == ""
    assert read_log(user_log_path("x86-64-v3", "into")) == read_log(paths[2])


@pytest.mark.parametrize("name", ["deep/er/tuned.jsonl", "tuned.jsonl", "zen4/tuned.json"])
def test_merge_into_what_is_not_searched_says_so(
    name: str, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = tmp_path / "My log.jsonl"
    write_log(source, [legal_record("zen4")])
    assert main(["logs", "merge", str(source), "--into", str(folder / name)]) == 0
    said = capsys.readouterr()
    assert "1 record of zen4, 1 of them new" in said.out
    assert str(user_log_path("zen4", "tuned")) in said.err
    assert main(["logs", "merge", str(source), "--into", str(folder / "zen4" / "b.jsonl")]) == 0
    assert capsys.readouterr().err == ""


def test_list_cuts_nothing_on_a_narrow_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(output, "_PIPE_WIDTH", 60)
    write_user_log(legal_record("zen4"), name="a-log-of-a-long-name")
    assert main(["logs", "list", "--user"]) == 0
    text = capsys.readouterr().out
    assert "…" not in text
    rows = [line.split("│")[1:-1] for line in text.splitlines() if line.startswith("│")]
    columns = ["".join(cell.strip() for cell in column) for column in zip(*rows, strict=True)]
    assert columns[0] == "zen4"
    assert columns[6].replace(" ", "") == "userzen4/a-log-of-a-long-name.jsonl"


def test_merge_into_a_new_file_of_one_target(
    tmp_path: Path, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = tmp_path / "mixed.jsonl"
    write_log(source, [legal_record("zen4"), legal_record("zen5")])
    into = folder / "zen4" / "tuned.jsonl"
    assert main(["logs", "merge", str(source), "--into", str(into)]) == 2
    assert "zen4, zen5" in capsys.readouterr().err
    assert not into.exists()
    assert main(["logs", "merge", str(source), "--into", str(into), "--target", "zen4"]) == 0
    assert [r.target for r in read_log(into)] == ["zen4"]
    assert main(["logs", "merge", str(source), "--into", str(into), "--target", "zen5"]) == 2
    assert [r.target for r in read_log(into)] == ["zen4"]
    capsys.readouterr()
    assert main(["logs", "merge", str(source), "--into", str(into), "--target", "zen3"]) == 2
    assert "no record to merge" in capsys.readouterr().err


def test_merge_into_a_folder_of_another_target(
    tmp_path: Path, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = tmp_path / "a.jsonl"
    write_log(source, [legal_record("zen4")])
    into = folder / "zen5" / "tuned.jsonl"
    assert main(["logs", "merge", str(source), "--into", str(into)]) == 2
    assert "zen4, zen5" in capsys.readouterr().err
    assert not into.exists()


@pytest.mark.parametrize("damaged", ["source", "into"])
def test_merge_of_a_damaged_log_changes_nothing(
    damaged: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    paths = {name: tmp_path / f"{name}.jsonl" for name in ("source", "into")}
    for path in paths.values():
        write_log(path, [legal_record()])
    damage(paths[damaged])
    before = {name: path.read_bytes() for name, path in paths.items()}
    assert main(["logs", "merge", str(paths["source"]), "--into", str(paths["into"])]) == 2
    assert f"{damaged}.jsonl: line 2" in capsys.readouterr().err
    assert {name: path.read_bytes() for name, path in paths.items()} == before


def test_prune_drops_what_no_longer_serves(capsys: pytest.CaptureFixture[str]) -> None:
    kept, slower = legal_record("zen4", tuned=1e-3), legal_record("zen4", tuned=1.5e-3)
    stale = legal_record("zen4", expression=DIGEST)
    path = write_user_log(kept, slower, stale)
    other = write_user_log(legal_record("zen5", expression=DIGEST))
    assert main(["logs", "prune", "--target", "zen4"]) == 0
    text = capsys.readouterr().out
    assert f"{path}: 2 records dropped" in text
    assert "expression changed" in text
    assert "beaten" in text
    assert read_log(path) == (kept,)
    assert len(read_log(other)) == 1
    assert main(["logs", "prune"]) == 0
    assert read_log(other) == ()


def test_prune_of_a_file(tmp_path: Path) -> None:
    path, own = tmp_path / "mine.jsonl", write_user_log(legal_record(expression=DIGEST))
    write_log(path, [legal_record(expression=DIGEST)])
    assert main(["logs", "prune", "--log", str(path)]) == 0
    assert read_log(path) == ()
    assert len(read_log(own)) == 1


def test_prune_leaves_a_damaged_log_and_goes_on(capsys: pytest.CaptureFixture[str]) -> None:
    damaged = user_log_path("icelake")
    damage(damaged)
    before = damaged.read_bytes()
    path = write_user_log(legal_record("zen4", expression=DIGEST))
    assert main(["logs", "prune"]) == 1
    captured = capsys.readouterr()
    assert str(damaged) in captured.err
    assert damaged.read_bytes() == before
    assert read_log(path) == ()


def test_prune_of_no_logs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["logs", "prune"]) == 0
    assert capsys.readouterr().out == "no logs\n"
    assert main(["logs", "prune", "--log", str(tmp_path / "none.jsonl")]) == 2
    assert "none.jsonl" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_changes_as_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    good, stale = legal_record("zen4"), legal_record("zen4", expression="f" * 16)
    source = tmp_path / "source.jsonl"
    write_log(source, [good, stale])
    into = user_log_path("zen4")
    assert main(["logs", "merge", str(source), "--into", str(into), "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said == {"log": str(into), "target": "zen4", "records": 2, "new": 2}
    damaged = user_log_path("zen5", "bad")
    damage(damaged)
    assert main(["logs", "prune", "--json"]) == 1
    captured = capsys.readouterr()
    said = json.loads(captured.out)
    assert said["ok"] is False
    logs = {log["log"]: log for log in said["logs"]}
    assert logs.keys() == {str(into), str(damaged)}
    (dropped,) = logs[str(into)]["dropped"]
    assert dropped["record"] == stale.to_dict()
    assert dropped["reason"]
    assert logs[str(into)]["error"] is None
    assert str(damaged) in logs[str(damaged)]["error"]
    assert main(["logs", "prune", "--target", "zen3", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"ok": True, "logs": []}
