"""A library of arrays that speaks DLPack and nothing else, for tests."""

from __future__ import annotations

import importlib
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np


class Array:
    """Holds a NumPy array or torch tensor and hands it out through DLPack."""

    def __init__(self, held: Any, device: tuple[int, int] = (1, 0)) -> None:
        self.held = held
        self.device = device
        self.exports = 0

    def __dlpack__(self, **options: Any) -> Any:
        self.exports += 1
        return self.held.__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.device


class LazyArray(Array):
    """Computes what it hands out: nobody but the receiver keeps that memory alive."""

    def __dlpack__(self, **options: Any) -> Any:
        return np.array(self.held).__dlpack__(**options)


class ArrayOfTheStandard(Array):
    """Says by the array API standard which namespace makes its kind."""

    def __array_namespace__(self) -> ModuleType | SimpleNamespace:
        return SimpleNamespace(from_dlpack=lambda x: ArrayOfTheStandard(np.from_dlpack(x)))


def from_dlpack(array: Any) -> Array:
    """This library's array on the memory of another's."""
    try:
        return Array(np.from_dlpack(array))
    except RuntimeError:  # bfloat16, which NumPy's DLPack has not
        return Array(importlib.import_module("torch").from_dlpack(array))
