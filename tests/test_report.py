"""The report: what the page shows, that it loads nothing, and its figures."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("matplotlib")

from command_logs import SMALL, legal_record, trial, write_user_log

from tvm_attention import environment, plotting, runtime
from tvm_attention.__main__ import main
from tvm_attention.plotting import new_figure
from tvm_attention.report.drawing import svg
from tvm_attention.report.labels import label_points
from tvm_attention.suites import suite
from tvm_attention.target import detect_target
from tvm_attention.tuning.journal import Journal

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
            journal.add(trial(1e-3 * (1 + (n + number) % 4), block=n % 4, other=n % 2))
        journal.add(trial(None))
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


def test_labels_stay_inside_the_axes() -> None:
    figure = new_figure(4.0, 3.0)
    axes = figure.subplots()
    axes.set(xscale="log", yscale="log", xlim=(1, 100), ylim=(1, 100))
    figure.draw_without_rendering()
    figure.set_layout_engine("none")
    corners = [(1.02, 1.02), (1.02, 98.0), (98.0, 1.02), (98.0, 98.0), (1.02, 10.0)]
    label_points(axes, [(x, y, f"a name at {x:g}, {y:g}") for x, y in corners], figure.dpi)
    edges = axes.bbox
    for text in axes.texts:
        box = text.get_window_extent()
        assert edges.x0 - 2 <= box.x0 < box.x1 <= edges.x1 + 2, text.get_text()
        assert edges.y0 - 2 <= box.y0 < box.y1 <= edges.y1 + 2, text.get_text()
    assert len(axes.texts) == len(corners)


def test_results_of_the_same_kind_are_told_apart() -> None:
    names = ("core", "core-1-thread", "decode")
    page = _write("--results", *(str(RESULTS / f"{name}.json") for name in names))
    for expected in (
        "attention alone, suite core, 2 threads",
        "attention alone, suite core, 1 thread",
        "attention alone, suite decode, 2 threads",
    ):
        assert expected in page.words
    assert re.findall(r"attention alone, (\d threads?)\n", page.words) == ["2 threads", "1 thread"]


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
