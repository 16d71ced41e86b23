"""The documentation's Python and shell, run as a reader would who goes through a page from top to bottom."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from exported_calls import needs_qemu

from bench import documentation
from tvm_attention import environment, functional, runtime

ROOT = Path(__file__).parent.parent
PAGES = sorted(path for path in (ROOT / "docs").glob("*.md") if "```" in path.read_text())


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Where the reader is, with logs of their own and a command line that is this project's."""
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
    _forget()
    yield tmp_path
    _forget()


def _forget() -> None:
    runtime.forget_kernels()
    functional.forget_calls()


def run_shell(text: str) -> None:
    text = text.replace("--minutes 2", "--minutes 2 --trials 2")
    done = subprocess.run(["bash", "-euo", "pipefail", "-c", text], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@needs_qemu  # and so a compiler for ARM, which the tutorial uses
@pytest.mark.parametrize("page", PAGES, ids=[path.stem for path in PAGES])
def test_the_blocks_run_one_after_the_other(page: Path, folder: Path) -> None:
    pytest.importorskip("xgboost", reason="the extra dev brings it")
    blocks = re.findall(r"^```(\w+)\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)
    assert {language for language, _ in blocks} <= {"python", "sh", "json", "text"}
    names: dict[str, Any] = {"__name__": "documentation"}
    for language, text in blocks:
        if language == "python":
            exec(compile(text, page.name, "exec"), names)
        elif language == "sh":
            run_shell(text)
        elif language == "json":
            assert all(isinstance(json.loads(line), dict) for line in text.splitlines())
    if page.stem == "tutorial":
        assert (folder / "archive" / "aarch64" / "manifest.json").is_file()
        assert list((folder / "logs").glob("*/tuned.jsonl"))


def test_every_page_has_a_place_in_the_navigation() -> None:
    named = set(re.findall(r"^  - .*: (\S+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE))
    assert named == {path.name for path in (ROOT / "docs").iterdir()}


def test_results_and_losses_are_put_in() -> None:
    text = documentation.on_page_markdown("a\n{{ results core-torch }}\n\n{{ losses }}\n")
    assert "| bert-128 (1x12x128x128x64) |" in text
    assert "{{" not in text
    page = documentation.on_page_markdown((ROOT / "docs" / "performance.md").read_text())
    assert "{{" not in page
    for line in documentation.losses().splitlines():
        assert re.fullmatch(r"- .*: \w+, 0\.\d\d(, (alone|in a torch program))?", line), line


def test_files_are_put_in_with_links_to_pages() -> None:
    text = documentation.on_page_markdown("{{ file CONTRIBUTING.md }}\n")
    assert text.startswith("# Contributing")
    assert "](index.md#how-a-kernel-is-selected)" in text


def test_roles_of_docstrings_are_not_shown() -> None:
    assert documentation.on_page_content("see :func:<code>load</code>") == "see <code>load</code>"
