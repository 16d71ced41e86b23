"""The progress bar: on a terminal, gone at the end, and nothing anywhere else."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

from tvm_attention.commands.bar import bar, stepped

STEPS = """
import time
from tvm_attention.commands.bar import bar
from tvm_attention.commands.output import console, say
out = console()
with bar(3, out) as advance:
    for name in ("one[x]", "two", "three"):
        advance(name)
        say(out, f"line of {name}")
        time.sleep(0.15)
print("end", flush=True)
"""


def test_quiet_where_there_is_no_terminal(capfd: pytest.CaptureFixture[str]) -> None:
    with bar(2) as advance:
        advance("one")
        print("a line")
        advance("two")
    assert list(stepped([1, 2], str)) == [1, 2]
    assert capfd.readouterr() == ("a line\n", "")


def _on_a_terminal(stdout_too: bool, tmp_path: Path) -> tuple[str, str]:
    """(what the terminal got, what a file that stdout went to got)."""
    leader, follower = pty.openpty()
    kept = tmp_path / "stdout"
    with kept.open("w") as file:
        process = subprocess.Popen(
            [sys.executable, "-c", STEPS],
            stdout=follower if stdout_too else file,
            stderr=follower,
            env={**os.environ, "TERM": "xterm", "COLUMNS": "80"},
        )
        os.close(follower)
        seen = b""
        while True:
            try:
                part = os.read(leader, 65536)
            except OSError:  # how Linux says that the other end is closed
                break
            if not part:
                break
            seen += part
    os.close(leader)
    assert process.wait() == 0
    return seen.decode(), kept.read_text()


def test_a_file_gets_the_lines_and_the_terminal_the_bar(tmp_path: Path) -> None:
    terminal, kept = _on_a_terminal(False, tmp_path)
    assert kept == "line of one[x]\nline of two\nline of three\nend\n"
    assert "line of" not in terminal
    for expected in ("one[x]", "two", "three", "0/3", "2/3"):
        assert expected in terminal
    assert terminal.endswith("\x1b[2K")  # the bar's line is erased


def test_on_a_terminal_lines_stay_above_the_bar(tmp_path: Path) -> None:
    terminal, _ = _on_a_terminal(True, tmp_path)
    for expected in ("\x1b[2Kline of one[x]\r\n", "\x1b[2Kline of three\r\n", "2/3"):
        assert expected in terminal
    assert terminal.endswith("end\r\n")
