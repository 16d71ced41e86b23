"""Small arrays of other libraries in a GPU's memory: lengths, offsets, page tables, sinks, slopes.

They are computed with where they lie, by small kernels (numbers.cuh) on the caller's stream: nobody waits,
and nothing is copied to the processor. What is done to them is what torch's tensors offer by the same names.
"""

from __future__ import annotations

import base64
import ctypes
import hashlib
from functools import cache
from importlib.resources import files
from typing import Any

import numpy as np

from tvm_attention.cuda import driver as driving
from tvm_attention.cuda.compilers import compiler, require_driver
from tvm_attention.cuda.driver import Driver, LoadedModule
from tvm_attention.cuda.memory import DeviceMemory, Shadow, shadow
from tvm_attention.cuda.parameters import Parameters
from tvm_attention.device_code import DeviceCode, DeviceFunction

# Types and operations by their numbers in numbers.cuh.
_TYPES = ("index", "int8", "uint8", "int16", "int32", "int64", "float16", "bfloat16", "float32")
WHOLE, FLOATS = _TYPES[1:6], _TYPES[6:]
_OPERATIONS = ("take", "sum", "difference", "product", "less")
_AXES, _THREADS = 3, 128
_LOW, _HIGH = -(2**31), 2**31 - 1
_NAMES = ("total", "extent_1", "extent_2", "type", "op", "scalar", "low", "high")
_ARRAYS = ("to", "from", "other")
_C_TYPES: dict[str, Any] = {
    **dict.fromkeys(_ARRAYS, ctypes.c_void_p),
    **dict.fromkeys(_NAMES, ctypes.c_int32),
    **{f"{array}_{axis}": ctypes.c_int64 for array in _ARRAYS for axis in range(_AXES)},
}
_BEYOND: dict[str, Any] = {
    **dict.fromkeys(("to", "rows_of"), ctypes.c_void_p),
    **dict.fromkeys(("total", "heads", "rows", "columns", "size", "bits"), ctypes.c_int32),
    **dict.fromkeys(("rows_of_0", *(f"to_{axis}" for axis in range(4))), ctypes.c_int64),
}
_FUNCTIONS = tuple(
    DeviceFunction(name, tuple(types), (_THREADS, 1), 0)
    for name, types in (("tva_numbers", _C_TYPES), ("tva_beyond", _BEYOND))
)


class Numbers:
    """An array of int32 or float32 on a GPU, of at most three axes. ``held`` says where; ``dtype`` is its
    own, or that of another library's memory, which is converted with the first thing that is done."""

    def __init__(self, held: Shadow, dtype: str = "int32") -> None:
        self.held, self.dtype = held, dtype

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.held.shape)

    @property
    def ndim(self) -> int:
        return self.held.ndim

    def __len__(self) -> int:
        return len(self.held)

    def __getitem__(self, index: Any) -> Numbers:
        return Numbers(self.held[index], self.dtype)

    def __setitem__(self, index: Any, value: Numbers | int) -> None:
        to = self.held[index]
        if isinstance(value, Numbers):
            _launch(to, value, "take")
        else:
            _launch(to, _index(to), "product", 0, low=value, high=value)

    def __add__(self, other: Numbers | int) -> Numbers:
        return self._made("sum", other)

    def __sub__(self, other: Numbers | int) -> Numbers:
        return self._made("difference", other)

    def __mul__(self, other: Numbers | int) -> Numbers:
        return self._made("product", other)

    def __lt__(self, other: Numbers | int) -> Numbers:
        return self._made("less", other)

    def clamp(self, low: int, high: int = _HIGH) -> Numbers:
        """Not less than ``low`` and not more than ``high``."""
        return self._made("take", 0, low, high)

    clip = clamp

    def counting(self, count: int) -> Numbers:
        """0, 1, 2, ..."""
        made = self.new_empty((count,))
        _launch(made.held, _index(made.held), "take")
        return made

    def new_empty(self, shape: tuple[int, ...]) -> Numbers:
        """An array of int32 beside this one."""
        return self._empty(shape, "int32")

    def new_zeros(self, shape: tuple[int, ...]) -> Numbers:
        made = self.new_empty(shape)
        made[...] = 0
        return made

    def expand(self, shape: tuple[int, ...]) -> Numbers:
        """The same numbers again and again."""
        return Numbers(_as_shadow(np.broadcast_to(self.held, shape, subok=True)), self.dtype)

    def reshape(self, *shape: int) -> Numbers:
        return Numbers(_as_shadow(self.contiguous().held.reshape(shape)), self.dtype)

    def contiguous(self) -> Numbers:
        """Itself where it is dense and of its own type, or a copy of it."""
        own = "float32" if self.dtype in FLOATS else "int32"
        if self.dtype == own and self.held.flags.c_contiguous:
            return self
        made = self._empty(self.shape, own)
        _launch(made.held, self, "take")
        return made

    def fill_beyond(self, to: Shadow, value: float) -> None:
        """Write a number to the rows (batch, head, row, ...) that are not among the first so many of each
        batch element."""
        if to.size == 0:
            return
        sizes = (*to.shape, 1)[:4]
        bits = int(np.array(value, "float32").view("int32")) >> 8 * (4 - to.itemsize)
        steps = [s // to.itemsize for s in to.strides]
        values: dict[str, float] = {
            "to": int(to.__array_interface__["data"][0]),
            "rows_of": int(self.held.__array_interface__["data"][0]), "rows_of_0": self.held.strides[0] // 4,
            "total": to.size, "heads": sizes[1], "rows": sizes[2], "columns": sizes[3],
            "size": to.itemsize, "bits": bits,
        }  # fmt: skip
        values |= {f"to_{axis}": s for axis, s in enumerate((*steps, 0)[:4])}
        _run(to, _FUNCTIONS[1], _BEYOND, values)

    def _made(self, op: str, other: Numbers | int, low: int = _LOW, high: int = _HIGH) -> Numbers:
        shape = (
            self.shape if isinstance(other, int) else np.broadcast_shapes(self.shape, other.shape)
        )
        made = self.new_empty(shape)
        _launch(made.held, self, op, other, low, high)
        return made

    def _empty(self, shape: tuple[int, ...], dtype: str) -> Numbers:
        gpu, stream = self.held.gpu, self.held.stream
        size = int(np.prod(shape))
        memory = DeviceMemory(driving.driver(), gpu, max(4 * size, 1), stream)
        strides = tuple(int(np.prod(shape[n + 1 :])) for n in range(len(shape)))
        held = shadow(memory.address, tuple(shape), strides, dtype, memory, gpu, stream)
        return Numbers(held, dtype)


def _as_shadow(array: Any) -> Shadow:
    """A view of one."""
    assert isinstance(array, Shadow)
    return array


def _index(like: Shadow) -> Numbers:
    """Numbers that are places along the last axis; nothing is read."""
    return Numbers(like, "index")


def _launch(
    to: Shadow, numbers: Numbers, op: str, other: Numbers | int = 0, low: int = _LOW, high: int = _HIGH
) -> None:  # fmt: skip
    """to = op(numbers, other), not less than ``low`` and not more than ``high``."""
    if to.size == 0:
        return
    shape = (1,) * (_AXES - to.ndim) + to.shape
    second = other.held if isinstance(other, Numbers) else None
    values: dict[str, float] = {
        "total": to.size, "extent_1": shape[1], "extent_2": shape[2],
        "type": _TYPES.index(numbers.dtype), "op": _OPERATIONS.index(op), "low": low, "high": high,
        "scalar": other if isinstance(other, int) else 0,
    }  # fmt: skip
    for name, array in zip(_ARRAYS, (to, numbers.held, second), strict=True):
        wide = to if array is None else np.broadcast_to(array, shape, subok=True)
        values[name] = 0 if array is None else int(array.__array_interface__["data"][0])
        strides = [0] * _AXES if array is None else [s // array.itemsize for s in wide.strides]
        values |= {f"{name}_{axis}": s for axis, s in enumerate(strides)}
    _run(to, _FUNCTIONS[0], _C_TYPES, values)


def _run(
    to: Shadow, function: DeviceFunction, types: dict[str, Any], values: dict[str, float]
) -> None:
    """Start a function with a thread for each element of an array."""
    parameters = Parameters(function.parameters, types, values)
    module = _module(driving.driver(), to.gpu)
    module.launch(function, -(-to.size // _THREADS), parameters, to.stream)


@cache
def _module(driver: Driver, device: int) -> LoadedModule:
    code = DeviceCode("", _FUNCTIONS)
    return driver.load(code, _machine_code(driver, driver.arch(device)), device)


def _machine_code(driver: Driver, arch: str) -> bytes:
    """The kernel's, from the cache or compiled. Raises KernelBuildError if there is no compiler."""
    folder = files("tvm_attention.cuda")
    text = "".join(folder.joinpath(n).read_text("utf-8") for n in ("prelude.cuh", "numbers.cuh"))
    key = hashlib.sha256(f"{arch} {text}".encode()).hexdigest()[:32]
    from tvm_attention import kernel_cache  # archives are called where its packages are not

    stored = kernel_cache.read(key)
    if stored is not None:
        return base64.b64decode(stored)
    chosen = compiler()
    require_driver(chosen, driver.version(), "this machine")
    cubin = chosen.machine_code(text, arch).cubin
    kernel_cache.write(key, base64.b64encode(cubin).decode())
    return cubin
