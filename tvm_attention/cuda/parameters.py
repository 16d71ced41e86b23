"""Parameters of a launch, for machines that have nothing but NumPy, too."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from typing import Any


class Parameters:
    """The parameters of a launch: an array of pointers to them, as cuLaunchKernel takes it."""

    def __init__(
        self, names: tuple[str, ...], types: Mapping[str, Any], values: Mapping[str, float]
    ) -> None:
        self.values = [types[n](values[n]) for n in names]
        pointers = [ctypes.cast(ctypes.byref(v), ctypes.c_void_p) for v in self.values]
        self.array = (ctypes.c_void_p * len(names))(*pointers)
