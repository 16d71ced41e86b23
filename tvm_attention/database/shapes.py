"""Checks of plain data from outside: each returns or raises an error that names the field."""

from __future__ import annotations

import re
import reprlib
from collections.abc import Mapping

from tvm_attention.errors import InvalidTypeError, InvalidValueError

MOST_CHARACTERS = 128  # of a text that is shown as one line
TARGET_NAME = re.compile(r"[a-z0-9][a-z0-9_.+-]{0,63}")
WORD = re.compile(r"[a-z_]{1,64}")
_MOST_SECONDS = 1e6


def mapping(where: str, value: object, names: set[str]) -> Mapping[str, object]:
    """A dict with exactly these names."""
    if not isinstance(value, dict):
        raise wrong_type(where, "a mapping", value)
    if missing := names - set(value):
        raise InvalidValueError(f"{where}: lacks {', '.join(sorted(missing))}")
    if set(value) - names:
        unknown = shown(sorted(map(str, set(value) - names)))
        raise InvalidValueError(f"{where}: expected {', '.join(sorted(names))}, got {unknown} too")
    return value


def matching_text(where: str, value: object, pattern: re.Pattern[str]) -> None:
    """Text that is the pattern from end to end."""
    if not isinstance(value, str):
        raise wrong_type(where, "text", value)
    if not pattern.fullmatch(value):
        raise wrong(where, f"text like {pattern.pattern}", value)


def one_line(where: str, value: object) -> None:
    """Text that a terminal shows as one line."""
    if not isinstance(value, str):
        raise wrong_type(where, "text", value)
    # A terminal shows these: control characters could rewrite what it showed before.
    if len(value) > MOST_CHARACTERS or not value.isprintable():
        raise wrong(where, f"one line of at most {MOST_CHARACTERS} printable characters", value)


def whole_number(where: str, value: object, low: int, high: int) -> None:
    """An int, not a bool, from low to high."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise wrong_type(where, "an int", value)
    if not low <= value <= high:
        expected = str(low) if low == high else f"{low} to {high}"
        raise wrong(where, expected, value)


def whole_numbers(
    where: str, value: object, names: re.Pattern[str], *, most: int, low: int, high: int
) -> None:
    """A dict of at most ``most`` names of such a form to ints from low to high."""
    if not isinstance(value, dict):
        raise wrong_type(where, "a mapping of names to ints", value)
    if len(value) > most:
        raise InvalidValueError(f"{where}: expected at most {most}, got {len(value)}")
    for name, number in value.items():
        matching_text(f"{where}: name", name, names)
        whole_number(f"{where}: {name}", number, low, high)


def decisions(where: str, value: object) -> None:
    """Those of a schedule, as far as any design space goes."""
    whole_numbers(where, value, WORD, most=64, low=0, high=65536)


def seconds(where: str, value: object, *, may_be_zero: bool = False) -> None:
    """A time that something may have taken."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise wrong_type(where, "a number", value)
    # NaN fails every comparison; math.isfinite would overflow on a very long int.
    if not (0 <= value <= _MOST_SECONDS) or (value == 0 and not may_be_zero):
        raise wrong(where, f"more than 0 and at most {_MOST_SECONDS:g}", value)


def wrong(where: str, expected: str, got: object) -> InvalidValueError:
    """The error for a value out of range; a long value is shortened."""
    return InvalidValueError(f"{where}: expected {expected}, got {shown(got)}")


def shown(value: object) -> str:
    """A value in a message: short, and printable whatever it holds."""
    if isinstance(value, int) and value.bit_length() > 64:  # repr() refuses very long ones
        return f"a number of {value.bit_length()} bits"
    return reprlib.repr(value)


def wrong_type(where: str, expected: str, got: object) -> InvalidTypeError:
    """The error for a value of another type."""
    return InvalidTypeError(f"{where}: expected {expected}, got {type(got).__name__}")
