"""The symbols an attention kernel is written over, and its operands as views on them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

from tvm import te, tirx

from tvm_attention.arguments import SCALARS, TENSORS, extras
from tvm_attention.compute.bounds import Bounds
from tvm_attention.compute.operand import Operand, as_stored, flat, multiple, offset_of
from tvm_attention.workload import UNBOUNDED, AttentionWorkload

# The score of nothing at all, to start a maximum from. Finite: the difference of two must not be NaN.
LOWEST_SCORE = -3.4028234663852886e38
LOG2_E = math.log2(math.e)
LAST_KEY = "last_key"  # what keys are clamped to, a symbol that lowering replaces

# How a machine computes 2**x: from the bits of float32 numbers, with instructions that split and scale by
# powers of two, or by a unit of its own.
Exponent = Literal["bits", "instructions", "unit"]


def float32(value: float) -> Any:
    return tirx.const(value, "float32")


def ceil_div(numerator: Any, denominator: Any) -> Any:
    return tirx.floordiv(numerator + (denominator - 1), denominator)


@dataclass(frozen=True)
class FixedLengths:
    """Constant extents, for the cost model: its features are counts, which symbols do not have."""

    batch: int
    query_heads: int
    group: int
    query_length: int
    key_length: int
    kv_batches: int
    key_rows: int
    threads: int
    splits: int


class Problem:
    """softmax(scale Q K^T) V with head dims, dtype and features fixed, everything else an argument.

    query (batch, query_heads, query_length, head_dim), key (batch, query_heads / group, key_length,
    head_dim), value (..., value_dim); scores are in units of log2 (``scale_log2`` = scale * log2 e), so
    that exp2 replaces exp. ``exponent``: how 2**x is computed. ``aligned``: elements
    of which addresses and strides of query, key and value are multiples.
    """

    def __init__(
        self,
        workload: AttentionWorkload,
        fixed: FixedLengths | None = None,
        *,
        exponent: Exponent = "bits",
        aligned: int = 1,
    ) -> None:
        w = self.workload = workload
        self.exponent, self._aligned = exponent, aligned
        assert w.value_dim is not None
        self.head_dim, self.value_dim, self.fixed = w.head_dim, w.value_dim, fixed
        self.scalars = {name: self._scalar(name) for name in SCALARS}
        self.buffers: dict[str, te.Tensor] = {}
        for extra in extras(w):
            if extra.name.startswith("lse"):
                continue  # an output, which lowering adds
            if extra.buffer:
                self.buffers[extra.name] = flat(extra.name, extra.dtype)
            else:
                self.scalars[extra.name] = self._extra_scalar(extra.name, extra.dtype)
        self.bounds = Bounds(w, self.scalars, lambda i: self.buffers["ragged"][i])
        self._last_key: Any = None
        self.kv_heads = tirx.floordiv(self["query_heads"], self["group"])
        kv_dtype = w.kv_dtype or w.dtype
        self._query, self._key, self._value = (
            Operand(name, dtype, self._fixed_strides(name), aligned)
            for name, dtype in zip(TENSORS[:3], (w.dtype, kv_dtype, kv_dtype), strict=True)
        )

    def __getitem__(self, name: str) -> Any:
        """A scalar argument."""
        return self.scalars[name]

    @property
    def outer(self) -> tuple[Any, Any]:
        """Batch and query heads."""
        return self["batch"], self["query_heads"]

    @property
    def out_shape(self) -> tuple[Any, ...]:
        return (*self.outer, self["query_length"], self.value_dim)

    @property
    def some_keys(self) -> Any:
        """The greatest number of keys, at least one: TVM guards what could be divided below zero."""
        return tirx.max(self["key_length"], 1)

    def query(self, b: Any, h: Any, row: Any, d: Any, raw: bool = False) -> Any:
        """Element of a query row, the last one repeated beyond the end."""
        row = self.bounds.query_start(b) + self.clamped_row(b, row)
        return self._query.at(tirx.const(0, "int64"), b, h, row, d, raw)

    def key(self, b: Any, kv_head: Any, row: Any, d: Any, raw: bool = False) -> Any:
        """Element of a batch element's key as stored, the last key repeated beyond the end."""
        base, batch, row = self._place("key", b, self.clamped(b, row))
        return self._key.at(base, batch, kv_head, row, d, raw)

    def value(self, b: Any, kv_head: Any, row: Any, c: Any, raw: bool = False) -> Any:
        """Element of a batch element's value as stored; the row must be one of its keys."""
        base, batch, row = self._place("value", b, row)
        return self._value.at(base, batch, kv_head, row, c, raw)

    def memory_row(self, name: str, batch: Any, kv_head: Any, row: Any, column: Any) -> Any:
        """Element of a row of the "key" or "value" tensor in memory, whichever sequence it belongs to."""
        operand = self._key if name == "key" else self._value
        if self.workload.paged:
            base, batch, row = self._place(name, batch, self.clamped(batch, row))
            return operand.at(base, batch, kv_head, row, column)
        return operand.at(tirx.const(0, "int64"), batch, kv_head, row, column)

    def clamp_where_needed(self) -> None:
        """Leave it to lowering (tvm_attention.lowering.narrowing) which keys are clamped."""
        if self.fixed is None and not self.workload.paged:
            self._last_key = te.var(LAST_KEY, "int32")

    def clamped(self, b: Any, key: Any) -> Any:
        """A key of the batch element, the last one beyond the end."""
        last = self.bounds.keys(b) - 1 if self._last_key is None else self._last_key
        return tirx.min(key, last)

    def clamped_row(self, b: Any, row: Any) -> Any:
        """A query row of the batch element, the last one beyond the end."""
        return tirx.min(row, self.bounds.queries(b) - 1)

    def scale_of(self, name: str, b: Any, kv_head: Any, key: Any) -> Any:
        """Scale of a quantised key or value ("key_scale", "value_scale"); None where there is none."""
        if self.workload.kv_dtype is None:
            return None
        strides = [self[f"{name}_{axis}_stride"] for axis in ("batch", "head", "row")]
        return self.buffers[name][offset_of((b, kv_head, self.clamped(b, key)), strides)]

    def result(self, x: Any) -> Any:
        """An output element as it is stored."""
        return as_stored(x, self.workload.dtype)

    def function(self, out: te.Tensor) -> tirx.PrimFunc:
        """The tensor expression as a PrimFunc over (query, key, value, buffers, scalars, out)."""
        operands = [self._query, self._key, self._value]
        tensors = [x.flat for x in operands] + list(self.buffers.values())
        symbols: list[Any] = []
        if self.fixed is None:
            symbols = [*self.scalars.values(), *(s for x in operands for s in x.strides)]
        if self._last_key is not None:
            symbols.append(self._last_key)
        return te.create_prim_func([*tensors, *symbols, out])

    def _place(self, name: str, b: Any, row: Any) -> tuple[Any, Any, Any]:
        """Where a row of a batch element lies: elements to skip, batch and row in the tensor."""
        if not self.workload.paged:
            return tirx.const(0, "int64"), b, self.bounds.key_start(b) + row
        shift = self["page_shift"]
        entry = offset_of((b, row >> shift), (self["table_batch_stride"], 1))
        page = tirx.Cast("int64", self.buffers["table"][entry])
        one = tirx.const(1, "int32")
        stride = multiple(self[f"{name}_page_stride"], self._aligned)
        return page * stride, 0, row & ((one << shift) - 1)

    def _scalar(self, name: str) -> Any:
        dtype = "float32" if name == "scale_log2" else "int32"
        if self.fixed is None:
            return te.var(name, dtype)
        return tirx.const(1.0 if dtype == "float32" else getattr(self.fixed, name, 0), dtype)

    def _extra_scalar(self, name: str, dtype: str) -> Any:
        if self.fixed is None:
            return te.var(name, dtype)
        w, fixed = self.workload, self.fixed
        left, right = (2**30 if n == UNBOUNDED else n for n in w.window or (0, 0))
        constants = {
            "mask_row_stride": fixed.key_length, "mask_column_stride": 1, "softcap_log2": 50.0,
            "window_left": left, "window_right": 0 if w.causal else right, "page_shift": 4,
        }  # fmt: skip
        return tirx.const(constants.get(name, 0), dtype)

    def _fixed_strides(self, name: str) -> tuple[int, int, int] | None:
        f = self.fixed
        if f is None:
            return None
        heads = f.query_heads if name == "query" else f.query_heads // f.group
        rows = f.query_length if name == "query" else f.key_length
        columns = self.value_dim if name == "value" else self.head_dim
        return heads * rows * columns, rows * columns, columns
