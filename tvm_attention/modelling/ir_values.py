"""Whole numbers of LLVM IR as functions of how often loops have turned, where scalar evolution gives up."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

Turns = Mapping[str, int]  # of the loops around, by the name of their first block
Expression = Callable[[Turns], int]


class NotKnown(ValueError):
    """A number that is known only when the kernel runs."""


@dataclass(frozen=True)
class Value:
    """A number, and the loops whose turns it depends on."""

    at: Expression
    loops: frozenset[str]


_DEFINITION = re.compile(r"\s+%([\w.$-]+|\"[^\"]+\") = (.*)")
_BLOCK = re.compile(r"([\w.$-]+|\"[^\"]+\"):")
_FUNCTION = re.compile(r"define .*?@([\w.]+)\(")
_PHI = re.compile(r"phi i\d+ \[ (\S+), \S+ \], \[ (\S+), \S+ \]")
_STEP = re.compile(r"add (?:\w+ )*i\d+ (\S+), (-?\d+)")
_BINARY = re.compile(r"(\w+) (?:\w+ )*i\d+ (%?[-\w.$\"]+), (%?[-\w.$\"]+)")
_CAST = re.compile(r"(?:zext|sext|trunc|freeze) (?:\w+ )*i\d+ (%?[-\w.$\"]+)")
_OPERAND = r"(%?[-\w.$\"]+)"
_EXTREME = re.compile(
    r"tail call (?:\w+ )*i\d+ @llvm\.([us]m(?:in|ax))\.i\d+\(i\d+ (?:\w+ )*"
    + _OPERAND + r", i\d+ (?:\w+ )*" + _OPERAND + r"\)"
)  # fmt: skip
_OPERATORS: Mapping[str, Callable[[int, int], int]] = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "shl": lambda a, b: a << b,
    "ashr": lambda a, b: a >> b,
    "lshr": lambda a, b: a >> b,
    "udiv": lambda a, b: a // b,
    "sdiv": lambda a, b: int(a / b),
    "urem": lambda a, b: a % b,
    "smin": min,
    "umin": min,
    "smax": max,
    "umax": max,
}


class Definitions:
    """The values that a function defines, by name."""

    def __init__(self, lines: list[str]) -> None:
        self._text: dict[str, tuple[str, str]] = {}
        block = ""
        for line in lines:
            if found := _BLOCK.match(line):
                block = found[1].strip('"')
            elif found := _DEFINITION.match(line):
                self._text[found[1]] = found[2], block
        self._known: dict[str, Value | None] = {}

    def value(self, operand: str) -> Value:
        """Of a constant or a name with its %. Raises NotKnown."""
        if re.fullmatch(r"-?\d+", operand):
            number = int(operand)
            return Value(lambda _: number, frozenset())
        name = operand.removeprefix("%")
        if name not in self._known:
            self._known[name] = None  # while it is being found out: a cycle is not known
            self._known[name] = self._defined(name)
        known = self._known[name]
        if known is None:
            raise NotKnown(operand)
        return known

    def _defined(self, name: str) -> Value | None:
        text, block = self._text.get(name, ("", ""))
        try:
            if found := _PHI.match(text):
                return self._recurrence(name, found[1], found[2], block)
            if found := _CAST.match(text):
                return self.value(found[1])
            if (found := _EXTREME.match(text) or _BINARY.match(text)) and found[1] in _OPERATORS:
                a, b = self.value(found[2]), self.value(found[3])
                operator = _OPERATORS[found[1]]
                return Value(lambda t: operator(a.at(t), b.at(t)), a.loops | b.loops)
        except NotKnown:
            pass
        return None

    def _recurrence(self, name: str, first: str, second: str, loop: str) -> Value | None:
        """What starts at one value and grows by a constant, or has two constant values, one a turn."""
        for start, following in ((first, second), (second, first)):
            step = _STEP.match(self._text.get(following.removeprefix("%"), ("", ""))[0])
            if step is not None and step[1] == f"%{name}":
                return _growing(self.value(start), int(step[2]), loop)
        a, b = self.value(first), self.value(second)
        if a.loops or b.loops:
            return None
        return Value(lambda t: b.at(t) if t[loop] else a.at(t), frozenset({loop}))


def _growing(start: Value, by: int, loop: str) -> Value:
    return Value(lambda turns: start.at(turns) + by * turns[loop], start.loops | {loop})


def definitions(ir: str) -> dict[str, Definitions]:
    """Of each function in some IR."""
    lines: dict[str, list[str]] = {}
    name = ""
    for line in ir.splitlines():
        if found := _FUNCTION.match(line):
            name = found[1]
        lines.setdefault(name, []).append(line)
    return {name: Definitions(found) for name, found in lines.items()}
