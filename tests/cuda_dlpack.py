"""A library of arrays on a GPU that speaks DLPack, with streams of its own as CuPy's has; its memory is the
processor's."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np

from tvm_attention.arrays.dlpack_capsule import Described, capsule

DEVICE, CUDA = 1, 2
current = 23  # its current stream
cuda = SimpleNamespace(get_current_stream=lambda: SimpleNamespace(ptr=current))


class Array:
    """Holds a NumPy array and hands it out as if it were on the GPU."""

    def __init__(self, held: Any, device: int = DEVICE) -> None:
        self.held, self.number = held, device
        self.asked: list[Any] = []  # streams on which it was to be read

    def __dlpack_device__(self) -> tuple[int, int]:
        return (CUDA, self.number)

    def __dlpack__(self, *, stream: Any = None, **_: Any) -> Any:
        self.asked.append(stream)
        strides = tuple(s // self.held.itemsize for s in self.held.strides)
        address = self.held.__array_interface__["data"][0]
        return capsule(
            address, self.held.shape, strides, str(self.held.dtype), self.number, self.held, CUDA
        )


def from_dlpack(array: Any) -> Array:
    """This library's array on another's memory, to be read on the current stream."""
    found = Described(array.__dlpack__(stream=current))
    interface = {
        "version": 3,
        "data": (found.address, False),
        "shape": found.shape,
        "strides": tuple(4 * s for s in found.strides),
        "typestr": "<f4",
    }
    assert found.dtype == "float32"
    held = np.asarray(SimpleNamespace(__array_interface__=interface, kept=found))
    made = Array(held)
    made.kept = found  # type: ignore[attr-defined]
    return made
