"""The symbols an attention kernel is written over, and its operands as strided views."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import tvm
from tvm import te, tirx

# Order of the scalar arguments of every kernel, after the four pointers. One order for all variants, so
# that a caller need not know which variant serves it.
SCALARS = (
    "batch",
    "query_heads",
    "group",
    "query_length",
    "key_length",
    "causal_offset",
    "threads",
    "splits",
    "scale_log2",
)
TENSORS = ("query", "key", "value", "out")
STRIDES = ("batch", "head", "row")

MASKED = -3.4028234663852886e38  # finite: the difference of two masked scores must not be NaN
FLAT_SIZE = (
    1 << 62
)  # a flat operand's extent: bounds are checked on the Python side, from the shapes


def float32(value: float) -> Any:
    return tirx.const(value, "float32")


def ceil_div(numerator: Any, denominator: Any) -> Any:
    return tirx.floordiv(numerator + (denominator - 1), denominator)


class Operand:
    """A (batch, head, row, dense column) view on flat memory; strides, in elements, are arguments.

    64-bit strides: a cache of 2**31 elements is an ordinary size.
    """

    def __init__(self, name: str, strides: tuple[int, int, int] | None) -> None:
        self.flat = te.placeholder((tirx.const(FLAT_SIZE, "int64"),), "float32", name=name)
        self.strides = (
            [te.var(f"{name}_{axis}_stride", "int64") for axis in STRIDES]
            if strides is None
            else [tirx.const(s, "int64") for s in strides]
        )

    def __getitem__(self, index: tuple[Any, Any, Any, Any]) -> Any:
        *outer, column = (tirx.Cast("int64", tvm.runtime.convert(i)) for i in index)
        return self.flat[sum((i * s for i, s in zip(outer, self.strides, strict=True)), column)]


@dataclass(frozen=True)
class FixedLengths:
    """Constant extents, for the cost model: its features are counts, which symbols do not have."""

    batch: int
    query_heads: int
    group: int
    query_length: int
    key_length: int
    threads: int
    splits: int


class Problem:
    """softmax(scale Q K^T) V with head dims and causal fixed, everything else an argument.

    query (batch, query_heads, query_length, head_dim), key (batch, query_heads / group, key_length,
    head_dim), value (..., value_dim); scores are in units of log2 (``scale_log2`` = scale * log2 e), so
    that exp2 replaces exp. Causal: key j is visible to query i when j <= i + causal_offset.
    """

    def __init__(
        self, head_dim: int, value_dim: int, causal: bool, fixed: FixedLengths | None = None
    ) -> None:
        self.head_dim, self.value_dim, self.causal, self.fixed = head_dim, value_dim, causal, fixed
        for name in SCALARS:
            constant = getattr(fixed, name, None)
            dtype = "float32" if name == "scale_log2" else "int32"
            if fixed is not None and constant is None:
                constant = 1.0 if dtype == "float32" else 0
            symbol = te.var(name, dtype) if constant is None else tirx.const(constant, dtype)
            setattr(self, name, symbol)
        self.kv_heads = tirx.floordiv(self.query_heads, self.group)
        self.query, self.key, self.value = (
            Operand(name, self._fixed_strides(name)) for name in TENSORS[:3]
        )

    batch: Any
    query_heads: Any
    group: Any
    query_length: Any
    key_length: Any
    causal_offset: Any
    threads: Any
    splits: Any
    scale_log2: Any

    def _fixed_strides(self, name: str) -> tuple[int, int, int] | None:
        f = self.fixed
        if f is None:
            return None
        heads = f.query_heads if name == "query" else f.query_heads // f.group
        rows = f.query_length if name == "query" else f.key_length
        columns = self.value_dim if name == "value" else self.head_dim
        return heads * rows * columns, rows * columns, columns

    def visible(self, row: Any, key: Any) -> Any:
        """Whether a query row may attend to a key (causal only)."""
        return key <= row + self.causal_offset

    def normalise(self, row: Any, weighted: Any, total: Any) -> Any:
        """weighted / total; zero for a causal row that sees no key at all."""
        quotient = weighted / total
        if not self.causal:
            return quotient
        return tirx.Select(self.visible(row, 0), quotient, float32(0.0))

    def scalar_parameters(self) -> list[Any]:
        """The scalar symbols and strides that a kernel takes, in the order of the calling convention."""
        if self.fixed is not None:
            return []
        strides = [s for operand in (self.query, self.key, self.value) for s in operand.strides]
        return [getattr(self, name) for name in SCALARS] + strides

    def function(self, out: te.Tensor) -> tirx.PrimFunc:
        """The tensor expression as a PrimFunc over (query, key, value, scalars..., out)."""
        operands = [self.query.flat, self.key.flat, self.value.flat]
        return te.create_prim_func([*operands, *self.scalar_parameters(), out])
