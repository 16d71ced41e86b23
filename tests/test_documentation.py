"""The blocks of README, CONTRIBUTING and docs, run as a reader would who goes through a page from top to
bottom; and what is put into pages when they are made."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from documents import ROOT, blocks, check_printed, run, run_shell
from exported_calls import needs_compiler, needs_qemu

from bench import documentation
from tvm_attention import archives, environment, functional, runtime

README = (ROOT / "README.md").read_text(encoding="utf-8")
PAGES = sorted(path for path in (ROOT / "docs").glob("*.md") if "```" in path.read_text())


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Where the reader is, with logs of their own and a command line that is this project's."""
    pytest.importorskip("xgboost", reason="the extra dev brings it")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(environment.LOG_DIR, str(tmp_path / "logs"))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, sys.path)))
    monkeypatch.setattr(sys, "path", list(sys.path))  # a page adds to it
    programs = tmp_path / "programs"
    programs.mkdir()
    (programs / "tvm-attention").write_text(
        f'#!/bin/sh\nexec {sys.executable} -m tvm_attention "$@"\n'
    )
    (programs / "tvm-attention").chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}{os.pathsep}{os.environ['PATH']}")
    _earlier_record(tmp_path / "logs")
    _forget()
    yield tmp_path
    _forget()


def _earlier_record(logs: Path) -> None:
    """A log that the reader has already: a search on a busy machine may find nothing to record."""
    shipped = (ROOT / "tuning_logs" / "x86-64-v2" / "measured.jsonl").read_text().splitlines()
    (logs / "x86-64-v2").mkdir(parents=True)
    (logs / "x86-64-v2" / "earlier.jsonl").write_text("\n".join(shipped[:2]) + "\n")


def _forget() -> None:
    runtime.forget_kernels()
    functional.forget_calls()
    archives.unload_archives()


@needs_qemu  # and so a compiler for ARM, which the tutorial uses
@pytest.mark.parametrize("page", PAGES, ids=[path.stem for path in PAGES])
def test_the_blocks_run_one_after_the_other(page: Path, folder: Path) -> None:
    shutil.copy(ROOT / "examples" / "c" / "attention.c", folder / "program.c")
    names: dict[str, Any] = {"__name__": "documentation"}
    for language, text in blocks(page.read_text()):
        if language == "python":
            exec(compile(text, page.name, "exec"), names)
        elif language == "sh":
            run_shell(text)
        elif language == "json":
            assert all(isinstance(json.loads(line), dict) for line in text.splitlines())
    if page.stem == "tutorial":
        assert (folder / "archive" / "aarch64" / "manifest.json").is_file()
        assert run("qemu-aarch64-static -L /usr/aarch64-linux-gnu ./program")
        assert list((folder / "logs").glob("*/tuned.jsonl"))


def test_commands_that_need_another_machine_are_understood() -> None:
    pages = (README, *(page.read_text() for page in PAGES))
    found = [check_printed(t) for page in pages for lang, t in blocks(page) if lang == "text"]
    assert sum(found) >= 10


def test_contributing(folder: Path) -> None:
    for language, text in blocks((ROOT / "CONTRIBUTING.md").read_text()):
        assert language == "sh"
        run_shell(text)


def test_python_of_the_readme(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("torch")
    pytest.importorskip("transformers", reason="the extra dev brings it")
    names: dict[str, Any] = {"__name__": "readme", "ids": _model_of_attention(folder)}
    for text in (text for language, text in blocks(README) if language == "python"):
        exec(compile(text, "README.md", "exec"), names)
    said = capsys.readouterr().out
    assert "tensor([[" in said
    assert names["out"].shape == (1, 12, 128, 64)
    assert np.allclose(names["outputs"][0], 1.0)


def _model_of_attention(folder: Path) -> Any:
    """Writes model.onnx, attention of its input to itself; returns an input that it leaves as it is."""
    onnx = pytest.importorskip("onnx")
    helper = onnx.helper
    x, y = (helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, (1, 2, 4, 8)) for n in "xy")
    node = helper.make_node("Attention", ["x", "x", "x"], ["y"])
    graph = helper.make_graph([node], "attention", [x], [y])
    opsets = [helper.make_opsetid("", 23)]
    onnx.save(helper.make_model(graph, opset_imports=opsets), folder / "model.onnx")
    return np.ones((1, 2, 4, 8), np.float32)


@needs_compiler
def test_shell_and_c_of_the_readme(folder: Path) -> None:
    for language, text in blocks(README):
        if language == "sh":
            run_shell(text)
        elif language == "c":
            _run_c(folder, text)
    assert (folder / "archive" / "x86_64" / "manifest.json").is_file()


def _run_c(folder: Path, text: str) -> None:
    """A block of C, linked as the README says: attention to values of one is one."""
    count = 12 * 384 * 64
    arrays = "".join(
        f"  float *{n} = malloc({count} * sizeof(float));\n" for n in ("q", "k", "v", "out")
    )
    (folder / "program.c").write_text(
        '#include <stdio.h>\n#include <stdlib.h>\n#include "tvm_attention.h"\n'
        f"int main(void) {{\n{arrays}"
        f"  for (int i = 0; i < {count}; ++i) q[i] = k[i] = 0.25f, v[i] = 1.0f, out[i] = 0.0f;\n"
        f"{text}"
        f"  for (int i = 0; i < {count}; ++i)\n"
        "    if (!(out[i] > 0.9999f && out[i] < 1.0001f)) return 1;\n"
        "  return 0;\n}\n"
    )
    linked = re.search(r"`(cc program\.c [^`]*)`", README)
    assert linked
    run(f"{linked[1]} -o program && ./program")


def test_tuning_as_the_readme_has_it_in_python(folder: Path) -> None:
    first, *others = (text for language, text in blocks(README) if language == "python")
    (tuning,) = (text for text in others if "ta.tune" in text)
    (folder / "tune.py").write_text(first + tuning.replace("trials=64", "trials=2"))
    done = subprocess.run([sys.executable, "tune.py"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert str(folder / "logs") in done.stdout


def test_every_page_has_a_place_in_the_navigation() -> None:
    named = set(re.findall(r"^  - .*: (\S+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE))
    assert named == {path.name for path in (ROOT / "docs").iterdir()}


def test_results_and_losses_are_put_in() -> None:
    others = dict.fromkeys(("page", "config", "files"))  # which mkdocs names
    given = "a\n{{ results core }}\n\n{{ losses }}\n"
    text = documentation.on_page_markdown(given, **others)
    assert "| bert-128 (1x12x128x128x64) |" in text
    assert "{{" not in text
    page = documentation.on_page_markdown((ROOT / "docs" / "performance.md").read_text())
    assert "{{" not in page
    assert "| generate | 2048 |" in page
    assert "| attention: plain |" in page
    for line in documentation.losses().splitlines():
        where = r"(, (alone|in a torch program))?(, on \w+)?"
        assert re.fullmatch(r"- .*: [\w.-]+, 0\.\d\d" + where, line), line


def test_suites_of_another_machine_are_put_in_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = json.loads((ROOT / "bench" / "results" / "decode.json").read_text())
    slow = result["workloads"][0]["measured"]["torch"]["ratio"]
    slow.update(median=0.5)
    for name in ("options", "generate", "core-mixed"):
        shutil.copy(ROOT / "bench" / "results" / f"{name}.json", tmp_path)
    (tmp_path / "zen9").mkdir()
    (tmp_path / "zen9" / "decode.json").write_text(json.dumps(result))
    monkeypatch.setattr(documentation, "RESULTS", tmp_path)
    assert documentation.suites() == ""
    page = documentation.on_page_markdown("{{ suites zen9 }}\n")
    assert page.startswith("### Decoding, zen9\n")
    assert f"| {result['workloads'][0]['name']} (" in page
    first = documentation.losses().splitlines()[0]
    assert first.endswith(": torch, 0.50, alone, on zen9")


def test_families_are_put_in_once_they_are_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = "a\n\n{{ results families }}\n"
    monkeypatch.setattr(documentation, "RESULTS", tmp_path)
    assert documentation.on_page_markdown(given).strip() == "a"
    result = json.loads((ROOT / "bench" / "results" / "generate.json").read_text())
    ratio = {"median": 0.9, "q1": 0.8, "q3": 1.1}
    row = {"family": "gpt2", "phase": "step", "beside": "sdpa", "ratio": ratio}
    cases = [{**row, "seconds": ratio}]
    (tmp_path / "families.json").write_text(
        json.dumps({**result, "context": 9, "tokens": 2, "cases": cases})
    )
    assert "| gpt2 | step | 900 |" in documentation.on_page_markdown(given)
    assert list(documentation._losses_of_families()) == ["step of gpt2: sdpa, 0.90"]


def test_files_are_put_in_with_links_to_pages() -> None:
    text = documentation.on_page_markdown("{{ file CONTRIBUTING.md }}\n")
    assert text.startswith("# Contributing")
    assert "](index.md#how-a-kernel-is-selected)" in text
    overview = documentation.on_page_markdown("{{ file README.md }}\n")
    links = re.findall(r"\]\(([^)#]+)", overview)
    assert "selection.md" in links
    assert not [link for link in links if not (ROOT / "docs" / link).is_file()]


def test_roles_of_docstrings_are_not_shown() -> None:
    assert documentation.on_page_content("see :func:<code>load</code>") == "see <code>load</code>"
