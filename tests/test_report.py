"""The report: figures' numbers, what the page shows, and that it loads nothing."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("matplotlib")

from command_logs import SMALL, legal_record, write_user_log

from tvm_attention import environment, plotting, runtime
from tvm_attention.__main__ import main
from tvm_attention.errors import InvalidValueError
from tvm_attention.report.drawing import svg
from tvm_attention.report.influence import best_so_far, influences
from tvm_attention.report.results import read_result
from tvm_attention.schedules import Candidate
from tvm_attention.suites import suite
from tvm_attention.target import detect_target
from tvm_attention.tuning.journal import Journal, Trial
from tvm_attention.tuning.searches import searches
from tvm_attention.work import all_bytes, flops

RESULTS = Path(__file__).parent.parent / "bench" / "results"
TORCH = RESULTS / "core.json"


@pytest.fixture(autouse=True)
def folders(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    monkeypatch.setenv(environment.LOG_DIR, str(tmp_path / "logs"))
    monkeypatch.setenv(environment.CACHE_DIR, str(tmp_path / "cache"))
    monkeypatch.delenv(environment.TARGET, raising=False)
    monkeypatch.chdir(tmp_path)
    runtime.forget_kernels()
    yield tmp_path
    runtime.forget_kernels()


def _trial(seconds: float | None, variant: str = "running", **decisions: int) -> Trial:
    return Trial(Candidate.of(variant, decisions), seconds, "" if seconds else "crashed")


class _Page(HTMLParser):
    """The tags, attributes and text of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.links: list[str] = []
        self.words = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attributes: Any) -> None:
        self.tags.append(tag)
        self.links += [
            v for k, v in attributes if k in ("src", "href", "xlink:href", "action", "data")
        ]

    def handle_data(self, data: str) -> None:
        self.words += data


def _write(*arguments: str) -> _Page:
    assert main(["report", "-o", "r.html", *arguments]) == 0
    return _Page(Path("r.html").read_text(encoding="utf-8"))


def test_a_page_of_everything(capsys: pytest.CaptureFixture[str]) -> None:
    host = detect_target()
    write_user_log(legal_record(host, suite("core")["bert-128"]))
    for number, workload in enumerate((SMALL, suite("core")["gpt2-1024"])):
        journal = Journal(workload, host, 2)
        for n in range(12):
            journal.add(_trial(1e-3 * (1 + (n + number) % 4), block=n % 4, other=n % 2))
        journal.add(_trial(None))
        journal.end("all trials used")
    files = sorted([*RESULTS.glob("core*.json"), RESULTS / "options.json"])
    page = _write("--results", *map(str, files))
    for expected in (
        host.model or host.micro_architecture, host.name, "exact machine", "GFLOP/s", "decode-8192-gqa4",
        "multiply-adds of the vector units", "main memory", "geometric mean", "onnxruntime",
        "Linear, attention, Linear", "1x2x64x64x16 float32", "gpt2-1024: 1x12x1024x1024x64 causal",
        "best so far", "block", "1 failed: crashed", "ended: all trials used",
    ):  # fmt: skip
        assert expected in page.words, expected
    assert page.tags.count("svg") == 4
    assert Path("r.html").stat().st_size < 3 << 20
    captured = capsys.readouterr()
    read = f"{len(files) - 1} files of results"
    assert captured.out.startswith(f"r.html: 23 workloads, {read}, 2 searches; ")
    assert captured.err.count("left out") == 1
    assert "options.json: expected a result of bench_attention.py" in captured.err


def test_the_page_loads_nothing() -> None:
    page = _write("--results", str(TORCH))
    assert not {"script", "link", "img", "iframe", "object", "embed"} & set(page.tags)
    assert page.links
    assert all(link.startswith("#") for link in page.links)
    text = Path("r.html").read_text(encoding="utf-8")
    assert "default-src 'none'" in text
    for loading in ("url(http", "@import", "javascript:"):
        assert loading not in text
    assert "<title>" in text


def test_long_searches_and_odd_names_fit_the_page(folders: Path) -> None:
    host = detect_target()
    lines = [
        json.dumps({"variant": "$\\frac", "decisions": {"$a": n % 7, "b_{": n % 3}, "error": "",
                    "seconds": None if n % 5 == 4 else 1e-3 + n % 97 / 1e5})
        for n in range(3000)
    ]  # fmt: skip
    folder = folders / "journals" / host.name
    folder.mkdir(parents=True)
    for number in range(20):
        (folder / f"{number}.jsonl").write_text("\n".join(lines))
    page = _write("--journals", str(folders / "journals"))
    assert Path("r.html").stat().st_size < 3 << 20
    assert page.tags.count("svg") == 16
    assert "Searches not shown: 4." in page.words
    assert "3000 trials" in page.words
    assert "$a" in page.words


def test_a_machine_with_no_files_yet(capsys: pytest.CaptureFixture[str]) -> None:
    page = _write("--suite", "demo")
    assert "No measurements were given" in page.words
    assert "No search has left a journal here" in page.words
    assert "BERT-base" in page.words
    assert "svg" not in page.tags
    assert capsys.readouterr().err == ""


def test_json(capsys: pytest.CaptureFixture[str], folders: Path) -> None:
    (folders / "other.json").write_text("{}")
    assert main(["report", "--json", "--results", str(TORCH), "other.json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["page"] == "tvm_attention_report.html"
    assert said["bytes"] == Path(said["page"]).stat().st_size
    assert said["results"] == [str(TORCH)]
    assert said["searches"] == 0
    assert "other.json" in said["left_out"][0]


def test_names_from_files_are_text(folders: Path) -> None:
    content = json.loads(TORCH.read_text())
    content["workloads"][0]["name"] = content["machine"]["model"] = "<script>alert(1)</script>&$x$"
    (folders / "evil.json").write_text(json.dumps(content))
    page = _write("--results", "evil.json")
    assert "script" not in page.tags
    assert "<script>alert(1)</script>&$x$" in page.words


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--results", "absent.json"], "absent.json"),
        (["--journals", "absent"], "--journals: expected a folder"),
        (["-o", "absent/r.html"], "No such file"),
    ],
)
def test_errors_take_one_line(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["report", *arguments]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert said in error


def test_without_matplotlib(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(plotting, "find_spec", lambda name: None)
    assert main(["report", "--results", str(TORCH)]) == 2
    assert "matplotlib" in capsys.readouterr().err
    assert not Path("tvm_attention_report.html").exists()


def test_what_a_result_says() -> None:
    result = read_result(TORCH)
    content = json.loads(TORCH.read_text())
    entries = {w["name"]: w for w in content["workloads"]}
    assert [m.name for m in result.measurements] == list(entries)
    for m in result.measurements:
        entry = entries[m.name]
        assert m.seconds.median == entry["measured"]["ours"]["seconds"]["median"]
        assert m.peers["torch"].q3 == entry["measured"]["torch"]["ratio"]["q3"]
        assert m.gflops * 1e9 * m.seconds.median == pytest.approx(flops(m.workload))
        assert m.intensity == flops(m.workload) / all_bytes(m.workload)
    fma = sorted(
        e["ceilings"]["machine"] for e in entries.values() if e["ceilings"]["limit"] == "fma"
    )
    assert result.fma_peak == fma[len(fma) // 2]
    memory, best = result.read_peaks or (math.nan, math.nan)
    assert memory == entries["decode-8192"]["ceilings"]["machine"]
    assert best >= memory


@pytest.mark.parametrize(
    "change",
    [
        lambda c: c.update(schema=2),
        lambda c: c.update(mode="other"),
        lambda c: c.pop("machine"),
        lambda c: c.update(workloads=7),
        lambda c: c["workloads"][0].pop("measured"),
        lambda c: c["workloads"][0]["workload"].update(head_dim=0),
        lambda c: c["workloads"][0]["measured"]["ours"]["seconds"].update(median=-1),
        lambda c: c["workloads"][0]["measured"]["torch"]["ratio"].update(q1="fast"),
    ],
)
def test_a_damaged_result_is_refused(change: Any, folders: Path) -> None:
    content = json.loads(TORCH.read_text())
    change(content)
    (folders / "bad.json").write_text(json.dumps(content))
    with pytest.raises(InvalidValueError, match=r"bad\.json: expected a"):
        read_result(folders / "bad.json")


@pytest.mark.parametrize("text", ["", "[1", "[]", "null"])
def test_what_is_no_result_is_refused(text: str, folders: Path) -> None:
    (folders / "bad.json").write_text(text)
    with pytest.raises(InvalidValueError, match=r"bad\.json: expected a"):
        read_result(folders / "bad.json")


def test_best_so_far() -> None:
    trials = [_trial(None), _trial(3.0), _trial(4.0), _trial(None), _trial(2.0)]
    assert best_so_far(trials) == [None, 3.0, 3.0, 3.0, 2.0]


def test_the_decision_that_matters_is_named() -> None:
    """Time doubles with ``matters``; ``noise`` alternates and ``fixed`` has one value."""
    trials = [
        _trial(1e-3 * 2 ** (n % 4) * 1.01 ** (n * 7 % 5), matters=n % 4, noise=n // 4 % 3, fixed=1)
        for n in range(24)
    ]
    found = {i.decision: i.share for i in influences(trials)}
    assert next(iter(found)) == "matters"
    assert found["matters"] > 0.95
    assert found["noise"] < 0.05
    assert found.keys() == {"matters", "noise"}


def test_decisions_are_those_of_the_best_variant() -> None:
    slow = [_trial(1.0 + n / 100, "row_block", score_rows=n % 3) for n in range(8)]
    fast = [_trial(0.1 + n / 100 * (n % 2), "running", block=n % 2) for n in range(8)]
    found = {i.decision: i.share for i in influences(slow + fast + [_trial(None, "streaming")])}
    assert list(found) == ["variant", "block"]
    assert found["variant"] > 0.8


def test_nothing_is_said_of_too_few_trials() -> None:
    assert influences([]) == []
    assert influences([_trial(None)]) == []
    assert influences([_trial(1.0, a=1), _trial(2.0, a=2), _trial(3.0, a=3)]) == []
    assert influences([_trial(1.0, a=n % 2) for n in range(9)]) == []


def test_searches_of_a_folder(folders: Path) -> None:
    host = detect_target()
    journal = Journal(SMALL, host, 2)
    journal.start_again()
    assert searches() == []  # nothing was tried yet
    journal.add(_trial(2.0))
    journal.add(_trial(1.0))
    old = journal.path.with_name("old.jsonl")  # of a version that did not say what it searched
    old.write_text(journal.path.read_text().splitlines()[-1] + '\n{"ended": "all trials used"}\n')
    journal.path.with_name("bad.jsonl").write_bytes(b"\xff\xfe")
    journal.path.with_name("dir.jsonl").mkdir()
    ours, other = sorted(searches(), key=lambda s: s.path.name == "old.jsonl")
    assert (ours.workload, ours.target, ours.threads, ours.current) == (SMALL, host.name, 2, True)
    assert [t.seconds for t in ours.trials] == [2.0, 1.0]
    assert ours.ended is None
    assert (other.workload, other.current, other.ended) == (None, False, "all trials used")


def test_figures_are_the_same_each_time() -> None:
    def draw(figure: Any) -> None:
        figure.subplots().plot([1, 2], [3, 4], label="a $ sign")

    first = svg("one", 3, 2, draw)
    assert first == svg("one", 3, 2, draw)
    assert first.startswith("<svg")
    assert first != svg("two", 3, 2, draw)


def test_a_single_measurement_is_drawn(folders: Path) -> None:
    content = json.loads(TORCH.read_text())
    del content["workloads"][1:]
    measured = content["workloads"][0]["measured"]
    content["workloads"][0]["measured"] = {name: measured[name] for name in ("ours", "torch")}
    (folders / "one.json").write_text(json.dumps(content))
    content["workloads"][0]["ceilings"] = None
    del content["workloads"][0]["measured"]["torch"]
    (folders / "bare.json").write_text(json.dumps(content))
    assert _write("--results", "one.json").tags.count("svg") == 2
    assert _write("--results", "bare.json").tags.count("svg") == 1
