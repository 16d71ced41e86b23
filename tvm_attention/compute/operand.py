"""A kernel's tensors as views on flat memory, read as float32 whatever they are stored as."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tvm
from tvm import te, tirx

from tvm_attention.arguments import STORAGE

# A flat operand's extent: bounds are checked on the Python side, from the shapes.
FLAT_SIZE = 1 << 62
_INFINITIES = {
    "float32": (0x7F800000, "int32"),
    "float16": (0x7C00, "uint16"),
    "bfloat16": (0x7F80, "uint16"),
}


def flat(name: str, dtype: str) -> te.Tensor:
    """Memory of unknown extent holding elements of a dtype."""
    return te.placeholder((tirx.const(FLAT_SIZE, "int64"),), STORAGE[dtype], name=name)


def offset_of(index: Sequence[Any], strides: Sequence[Any]) -> Any:
    """The element at an index. 64-bit: a cache of 2**31 elements is an ordinary size."""
    terms = (_int64(i) * s for i, s in zip(index, strides, strict=True))
    return sum(terms, tirx.const(0, "int64"))


def as_float32(stored: Any, dtype: str) -> Any:
    """A stored element as a float32 number; bfloat16 is the upper half of one."""
    if dtype == "float32":
        return stored
    if dtype == "bfloat16":
        wide = tirx.Cast("uint32", stored) << tirx.const(16, "uint32")
        return tirx.reinterpret("float32", wide)
    return tirx.Cast("float32", stored)


def is_number(x: Any) -> Any:
    """Whether a float32 is no NaN. Not x == x, which TVM simplifies to true."""
    return x <= tirx.const(float("inf"), "float32")


def is_nan(x: Any) -> Any:
    """Whether a float32 is a NaN. Not the negation of :func:`is_number`, which TVM turns into x > inf."""
    return magnitude(x) > infinity("float32")


def is_finite(x: Any) -> Any:
    """Whether a float32 is neither NaN nor Inf."""
    return magnitude(x) < infinity("float32")


def magnitude(x: Any, dtype: str = "float32") -> Any:
    """The bits but the sign of an element as it is stored: they compare as the numbers do, infinity below
    every NaN."""
    kind = _INFINITIES[dtype][1]
    bits = x if STORAGE[dtype] == kind else tirx.reinterpret(kind, x)
    return bits & tirx.const(0x7FFFFFFF if kind == "int32" else 0x7FFF, kind)


def infinity(dtype: str) -> Any:
    """The magnitude of infinity in a dtype."""
    return tirx.const(*_INFINITIES[dtype])


def as_stored(x: Any, dtype: str) -> Any:
    """A float32 number rounded (to nearest, ties to even) to what is stored."""
    if dtype == "float32":
        return x
    if dtype == "float16":
        return tirx.Cast("float16", x)
    bits = tirx.reinterpret("uint32", x)
    odd = (bits >> tirx.const(16, "uint32")) & tirx.const(1, "uint32")
    rounded = (bits + tirx.const(0x7FFF, "uint32") + odd) >> tirx.const(16, "uint32")
    # Rounding a NaN could carry it into the sign, or drop what makes it one.
    half = tirx.Select(is_number(x), rounded, tirx.const(0x7FC0, "uint32"))
    return tirx.Cast("uint16", half)


class Operand:
    """A (batch, head, row, dense column) tensor; its strides, in elements, are arguments, multiples of
    ``aligned``."""

    def __init__(
        self, name: str, dtype: str, strides: tuple[int, int, int] | None, aligned: int = 1
    ) -> None:
        self.dtype, self._aligned = dtype, aligned
        self.flat = flat(name, dtype)
        self.strides = (
            [te.var(f"{name}_{axis}_stride", "int64") for axis in ("batch", "head", "row")]
            if strides is None
            else [tirx.const(s, "int64") for s in strides]
        )

    def at(self, base: Any, batch: Any, head: Any, row: Any, column: Any, raw: bool = False) -> Any:
        """The element, as float32 or (``raw``) as it is stored, of the tensor that starts ``base`` elements
        on."""
        place = offset_of((batch, head, row), [multiple(s, self._aligned) for s in self.strides])
        stored = self.flat[base + place + _int64(column)]
        return stored if raw else as_float32(stored, self.dtype)


def multiple(stride: Any, factor: int) -> Any:
    """A number known to be a multiple of ``factor``, written so that TVM sees it."""
    return stride if factor == 1 else tirx.floordiv(stride, factor) * factor


def _int64(index: Any) -> Any:
    return tirx.Cast("int64", tvm.runtime.convert(index))
