"""Loops with what they read and write, as plain data: what accesses finds and traffic counts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Access:
    """Elements of a buffer: ``base``, the byte of the first with all loops at their start, ``extent``, bytes
    read or written together, and for each loop that moves it, by name, the bytes that a turn moves it."""

    buffer: str
    base: int
    extent: int
    steps: Mapping[str, int]
    written: bool


@dataclass
class Nest:
    """A loop with its turns, the accesses right inside it and the loops inside; the task itself has one
    turn."""

    name: str
    turns: int
    accesses: list[Access] = field(default_factory=list)
    inner: list[Nest] = field(default_factory=list)
