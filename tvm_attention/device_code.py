"""Source for a GPU and what is launched of it: plain data, which the cache and archives hold."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

# Functions that kernels call: of cuda/prelude.cuh, of cuda/tensor_cores.cuh, of cuda/copies.cuh.
KNOWN, POWER_OF_TWO = "known", "power_of_two"
TENSOR_PRODUCT, WEIGHTED_ROWS = "multiply_rows", "multiply_weights"
COPY, CLEAR, WAIT_FOR_COPIES = "start_copy", "clear", "wait_for_copies"


@dataclass(frozen=True, slots=True)
class DeviceFunction:
    """A function that a grid of thread blocks runs: its name, its parameters in order (names of
    tvm_attention.arguments), the threads of a block along x and y, and its bytes of shared memory."""

    name: str
    parameters: tuple[str, ...]
    threads: tuple[int, int]
    shared_bytes: int


@dataclass(frozen=True, slots=True)
class DeviceCode:
    """CUDA source without a prelude (tvm_attention.cuda.prelude), and its functions in the order of their
    launches."""

    source: str
    functions: tuple[DeviceFunction, ...]

    def to_dict(self) -> dict[str, object]:
        """As plain data."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> DeviceCode:
        """The inverse of :meth:`to_dict`, also after JSON."""
        functions = tuple(
            DeviceFunction(
                f["name"],
                tuple(f["parameters"]),
                (f["threads"][0], f["threads"][1]),
                f["shared_bytes"],
            )
            for f in values["functions"]
        )
        return cls(values["source"], functions)
