"""Code blocks of the documentation, and how a reader's shell commands are run or, where they would take
long or change an environment, checked."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

from tvm_attention.__main__ import parser
from tvm_attention.target import named_target

ROOT = Path(__file__).parent.parent
LANGUAGES = {"python", "sh", "json", "c", "text"}  # text: what is printed, or needs another machine
# What .ci/run does itself, with the same words.
_SETTING_UP = {".", "python3", "pip", "pytest", "ruff", "mkdocs"}
# What a reader lets run for long, and what the tests make of it.
_SHORTER = {
    "--minutes 2\n": "--minutes 2 --trials 2\n",
    "--targets x86-64-v2,x86-64-v3,x86-64-v4,cortex-a72,neoverse-n1": "--targets x86-64-v2",
}


def blocks(text: str) -> list[tuple[str, str]]:
    """(language, text) of each block, none of which may be of a language that no test knows."""
    fences = re.findall(r"^```(.*)$", text, re.MULTILINE)
    found: list[tuple[str, str]] = re.findall(r"^```(\w+)\n(.*?)^```", text, re.M | re.DOTALL)
    assert len(fences) == 2 * len(found), "a block without a language"
    assert {language for language, _ in found} <= LANGUAGES
    return found


def run_shell(text: str) -> None:
    """Each command of a block: run, or held against what it names."""
    for command in _commands(text):
        words = shlex.split(command, comments=True)
        if not _is_only_checked(words):
            run(_shortened(command))
        if words[0] == "tvm-attention":
            options = vars(parser().parse_args(words[1:]))
            for target in (options.get("targets") or "native").split(","):
                assert target == "native" or named_target(target)


def check_printed(text: str) -> int:
    """Commands in a block of what is printed, or needs another machine: none is run, but the command line
    takes its words. Gives how many there are."""
    found = 0
    for line in re.findall(r"^(?:\$ )?((?:tvm-attention|python) .*)$", text, re.MULTILINE):
        words = shlex.split(line, comments=True)
        if words[0] == "python":
            _check_program(words[1], words[2:])
        else:
            parser().parse_args(words[1:])
        found += 1
    return found


def run(command: str) -> str:
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", command], capture_output=True, text=True
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
    return done.stdout


def _commands(text: str) -> list[str]:
    lines = text.replace("\\\n", " ").splitlines(keepends=True)
    parts = (part for line in lines for part in line.split(" && "))
    return [part.strip(" ") for part in parts if part.strip() and not part.startswith("#")]


def _shortened(command: str) -> str:
    command = command if command.endswith("\n") else command + "\n"
    for long, short in _SHORTER.items():
        command = command.replace(long, short)
    return command


def _is_only_checked(words: list[str]) -> bool:
    if words[0] == "pip":
        named = re.search(r"\[([\w,]+)\]", words[-1])
        declared = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
        for extra in named[1].split(",") if named else ():
            assert re.search(rf"^{extra} = \[", declared, re.MULTILINE), extra
    if words[0] == "python":
        _check_program(words[1], words[2:])
    for word in words:
        if word.startswith("tests/"):
            assert (ROOT / word).is_file(), word
    # The tutorial's search is run, and the README's in Python.
    is_long = words[:2] == ["tvm-attention", "tune"] and {"--suite", "--trials"} & set(words)
    return bool(is_long) or words[0] in _SETTING_UP or words[0] == "python" or _is_demo(words)


def _is_demo(words: list[str]) -> bool:
    return words == ["tvm-attention", "demo"]  # .ci/run's


def _check_program(path: str, options: list[str]) -> None:
    said = subprocess.run(
        [sys.executable, str(ROOT / path), "--help"], capture_output=True, text=True, check=True
    ).stdout
    for option in options:
        assert not option.startswith("--") or option in said, option
