"""Numbers with units, lines as they are, and what the commands share."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from tvm_attention.commands import output
from tvm_attention.commands.arguments import canonical_target, command_line
from tvm_attention.commands.ending import error_text
from tvm_attention.commands.packages import installed, required
from tvm_attention.errors import InvalidValueError


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(None, "-"), (8.12e-4, "812 us"), (1.254e-3, "1.25 ms"), (0.5, "500 ms"), (2.13, "2.13 s")],
)
def test_seconds_text(seconds: float | None, text: str) -> None:
    assert output.seconds_text(seconds) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (-0.2, "0 s"),
        (59.4, "59 s"),
        (59.6, "1 min 00 s"),
        (200, "3 min 20 s"),
        (3599.7, "1 h 00 min"),
        (4 * 3600 + 300, "4 h 05 min"),
    ],
)
def test_duration_text(seconds: float, text: str) -> None:
    assert output.duration_text(seconds) == text


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 bytes"),
        (1023, "1023 bytes"),
        (48 << 10, "48 KiB"),
        (3_500_000, "3.34 MiB"),
        (512 << 20, "512 MiB"),
        (3 << 30, "3 GiB"),
        (1 << 40, "1024 GiB"),
    ],
)
def test_size_text(size: int, text: str) -> None:
    assert output.size_text(size) == text


def test_counted() -> None:
    assert [output.counted(n, "record") for n in (0, 1, 2)] == [
        "0 records",
        "1 record",
        "2 records",
    ]


def test_say_prints_a_line_as_it_is() -> None:
    out = io.StringIO()
    line = "[red]not markup[/red] :smile: " + "word " * 100
    output.say(Console(file=out, width=40), line)
    assert out.getvalue() == line + "\n"


def test_json_has_no_nan(capsys: pytest.CaptureFixture[str]) -> None:
    output.print_json({"a": 1.5})
    assert capsys.readouterr().out == '{\n  "a": 1.5\n}\n'
    with pytest.raises(ValueError, match="JSON"):
        output.print_json(float("nan"))


def test_error_text_is_one_line_that_says_something() -> None:
    assert error_text(ValueError("one\n  two")) == "one two"
    assert error_text(ValueError()) == "ValueError"


def test_command_line_can_be_typed_again() -> None:
    assert command_line(["tune", "--log", "my logs"]) == "tvm-attention tune --log 'my logs'"


def test_canonical_target() -> None:
    assert canonical_target(None) is None
    assert canonical_target("x86-64-v3") == "x86-64-v3"
    assert canonical_target("cascadelake") == "cascadelake"
    with pytest.raises(InvalidValueError, match="pentium"):
        canonical_target("pentium")


def test_packages() -> None:
    assert installed("tvm-attention")
    assert installed("no-such-package-at-all") is None
    assert required("apache-tvm").startswith("'apache-tvm==")
    assert "<0.1.15" in required("apache-tvm-ffi")
    assert required("no-such-package-at-all") == "no-such-package-at-all"
