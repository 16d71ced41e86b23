"""What stands in for Triton: its programs run one after the other on NumPy arrays. As much of the language as
bench/gpu/flash_triton.py speaks."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np

configs: list[Config] = []  # of the last kernel that is tuned
chosen = 0  # which of them runs


class Config:
    def __init__(self, sizes: dict[str, int], num_warps: int, num_stages: int) -> None:
        assert num_warps in (1, 2, 4, 8)
        assert num_stages >= 1
        self.sizes = sizes


class Block(np.ndarray[Any, Any]):
    """Numbers of a program."""

    def to(self, dtype: Any) -> Any:
        return self.astype(dtype)


def block(numbers: Any) -> Any:
    return np.asarray(numbers).view(Block)


class Pointer:
    """Places in an array, one for each element of ``offsets``."""

    def __init__(self, array: Any, offsets: Any = 0) -> None:
        self.array, self.offsets = array, offsets
        self.dtype = type("dtype", (), {"element_ty": array.dtype})

    def __add__(self, offsets: Any) -> Pointer:
        return Pointer(self.array, self.offsets + offsets)


program: tuple[int, ...] = ()


def load(places: Pointer, mask: Any = None, other: float = 0.0) -> Any:
    """What a program must not read ends it, as does a place beyond the array."""
    seen = np.broadcast_to(mask, places.offsets.shape)
    found = np.full(places.offsets.shape, other, places.array.dtype)
    found[seen] = places.array[places.offsets[seen]]
    return block(found)


def store(places: Pointer, numbers: Any, mask: Any = None) -> None:
    seen = np.broadcast_to(mask, places.offsets.shape)
    places.array[places.offsets[seen]] = np.asarray(numbers)[seen]


def dot(x: Any, y: Any) -> Any:
    """Sums are float32."""
    assert x.dtype == y.dtype
    assert min(*x.shape, *y.shape) >= 16
    return block(x.astype(np.float32) @ y.astype(np.float32))


def autotune(configs: list[Config], key: list[str]) -> Callable[[Any], Any]:
    globals()["configs"] = configs

    class Tuned:
        def __init__(self, kernel: Any) -> None:
            self._kernel = kernel

        def __getitem__(self, grid: Any) -> Any:
            def launch(*arguments: Any, **fixed: Any) -> None:
                assert set(key) <= {*self._kernel.__code__.co_varnames}
                sizes = configs[chosen].sizes
                given = [
                    Pointer(x.numpy().reshape(-1)) if hasattr(x, "numpy") else x for x in arguments
                ]
                across, down = grid(sizes)
                for n in range(across * down):
                    globals()["program"] = (n % across, n // across)
                    self._kernel(*given, **fixed, **sizes)

            return launch

    return Tuned


def modules() -> dict[str, ModuleType]:
    """``triton`` and ``triton.language`` by name."""
    triton, language = ModuleType("triton"), ModuleType("triton.language")
    own: dict[str, Any] = {
        "Config": Config, "autotune": autotune, "jit": lambda kernel: kernel,
        "cdiv": lambda x, y: -(-x // y), "language": language,
    }  # fmt: skip
    spoken: dict[str, Any] = {
        "constexpr": int, "float32": np.float32, "int64": np.int64, "load": load, "store": store,
        "program_id": lambda axis: block(program[axis]), "arange": lambda a, b: block(np.arange(a, b)),
        "full": lambda shape, x, dtype: block(np.full(shape, x, dtype)),
        "zeros": lambda shape, dtype: block(np.zeros(shape, dtype)), "dot": dot,
        "minimum": np.minimum, "maximum": np.maximum, "trans": np.transpose, "where": np.where,
        "max": lambda x, axis: x.max(axis), "sum": lambda x, axis: x.sum(axis), "exp2": np.exp2,
    }  # fmt: skip
    for module, names in ((triton, own), (language, spoken)):
        for name, value in names.items():
            setattr(module, name, value)
    return {"triton": triton, "triton.language": language}
