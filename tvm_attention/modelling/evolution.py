"""Expressions of scalar evolution as ``opt`` prints them, as functions of how often loops have turned.

The grammar is that of LLVM's SCEV::print: constants, values, casts, n-ary operators in parentheses and
``{start,+,step}<%loop>``, the value of a start and a step after so many turns of a loop.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import reduce

from tvm_attention.modelling.ir_values import Definitions, Expression, NotKnown, Value

_TOKEN = re.compile(
    r"\s*(/u|umin_seq|[us]m(?:in|ax)|zext|sext|trunc|to|[-+]?\d+|%[\w.$\"-]+|i\d+|<%[^>]*>|<\w+>|[(){}+*,])"
)
_OPERATORS: dict[str, Callable[[int, int], int]] = {
    "+": lambda a, b: a + b,
    "*": lambda a, b: a * b,
    "/u": lambda a, b: a // b,
    "umin": min,
    "umin_seq": min,
    "smin": min,
    "umax": max,
    "smax": max,
}


def parsed(text: str, defined: Definitions) -> Value:
    """The number that an expression is; ``defined`` knows the names in it. Raises NotKnown."""
    reader = _Reader(_tokens(text), defined)
    expression = reader.expression()
    if reader.left:
        raise NotKnown(text)
    return Value(expression, frozenset(reader.loops))


def _tokens(text: str) -> list[str]:
    tokens, place = [], 0
    while place < len(text.rstrip()):
        found = _TOKEN.match(text, place)
        if found is None:
            raise NotKnown(text)
        tokens.append(found[1])
        place = found.end()
    # Flags such as <nuw> say nothing about the value.
    return [t for t in tokens if not (t.startswith("<") and not t.startswith("<%"))]


@dataclass
class _Reader:
    left: list[str]
    defined: Definitions

    def __post_init__(self) -> None:
        self.left, self.loops = list(self.left), set[str]()

    def expression(self) -> Expression:
        token = self._next()
        if token == "(":
            return self._in_parentheses()
        if token == "{":
            return self._recurrence()
        if re.fullmatch(r"[-+]?\d+", token):
            number = int(token)
            return lambda _: number
        value = self.defined.value(token)
        self.loops |= value.loops
        return value.at

    def _in_parentheses(self) -> Expression:
        if self.left and self.left[0] in ("zext", "sext", "trunc"):
            self.left = self.left[2:]  # the cast and its type; numbers here are small
            inner = self.expression()
            if self._next() != "to":
                raise NotKnown("cast")
            self._next()
            self._expect(")")
            return inner
        terms, operator = [self.expression()], "+"
        while self.left and self.left[0] != ")":
            operator = self._next()
            if operator not in _OPERATORS:
                raise NotKnown(operator)
            terms.append(self.expression())
        self._expect(")")
        combine = _OPERATORS[operator]
        return lambda turns: reduce(combine, (t(turns) for t in terms))

    def _recurrence(self) -> Expression:
        start = self.expression()
        for expected in (",", "+", ","):
            self._expect(expected)
        step = self.expression()
        self._expect("}")
        loop = self._next()
        if not loop.startswith("<%"):
            raise NotKnown(loop)
        name = loop[2:-1].strip('"')
        self.loops.add(name)
        return lambda turns: start(turns) + step(turns) * turns[name]

    def _next(self) -> str:
        if not self.left:
            raise NotKnown("an expression that ends early")
        return self.left.pop(0)

    def _expect(self, token: str) -> None:
        if self._next() != token:
            raise NotKnown(f"no {token}")
