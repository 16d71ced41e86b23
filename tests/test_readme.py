"""The README's Python, run as a reader would who goes through it from top to bottom."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers", reason="the extra dev brings it")

TEXT = (Path(__file__).parent.parent / "README.md").read_text(encoding="utf-8")


def test_the_blocks_run_one_after_the_other(capsys: pytest.CaptureFixture[str]) -> None:
    blocks = re.findall(r"^```python\n(.*?)^```", TEXT, re.MULTILINE | re.DOTALL)
    assert len(blocks) > 3
    names: dict[str, Any] = {"__name__": "readme"}  # what needs a program of its own is left out
    for block in blocks:
        exec(compile(block, "README.md", "exec"), names)
    said = capsys.readouterr().out
    assert "tensor([[" in said
    assert names["out"].shape == (1, 12, 128, 64)
