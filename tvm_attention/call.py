"""One call of attention: its extents, options and layout, checked; and what a kernel is told of it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tvm_attention.arguments import RAGGED_FIELDS, extras
from tvm_attention.arrays import ArrayKind, NumPyArrays, Shape
from tvm_attention.operands import Geometry
from tvm_attention.options import Options
from tvm_attention.workload import UNBOUNDED, AttentionWorkload

_ALL = 1 << 30  # keys on an unbounded side of a window
_LOG2_E = math.log2(math.e)


@dataclass(frozen=True, slots=True, eq=False)
class Pages:
    """Keys and values in pages: ``table`` (batch, pages) int32, C-contiguous, names the pages of each
    batch element, a NumPy array or, on a GPU, a torch tensor there; a page holds 2**shift keys; strides
    from page to page in elements."""

    table: Any
    shift: int
    key_stride: int
    value_stride: int


@dataclass(frozen=True, slots=True, eq=False)
class Scales:
    """Scales of int8 keys and values, float32, with (batch, head, key) strides in elements, 0 where one
    serves all: NumPy arrays, or torch tensors where the keys are, on a GPU."""

    key: Any
    value: Any
    key_strides: Shape
    value_strides: Shape


@dataclass(frozen=True, slots=True, eq=False)
class Call:
    """``sizes`` with the greatest lengths where batch elements differ; then ``ragged`` (batch, 4) int32
    holds each one's fields (tvm_attention.arguments.RAGGED_FIELDS), a NumPy array or, on a GPU, a torch
    tensor there; ``all_queries`` says that each has all rows as queries even so. ``kv_batches`` and
    ``key_rows`` are the extents of the key tensor in memory."""

    sizes: Geometry
    options: Options
    dtype: str
    kv_batches: int
    key_rows: int
    ragged: Any = None
    pages: Pages | None = None
    scales: Scales | None = None
    all_queries: bool = False

    @classmethod
    def of(cls, sizes: Geometry, options: Options, dtype: str, **extra: Any) -> Call:
        """A call on (batch, heads, rows, dim) tensors; ``options.kv_lengths`` makes it ragged."""
        ragged = None
        if options.kv_lengths is not None:
            ragged = ragged_fields(sizes.batch, sizes.query_length, options.kv_lengths)
        return cls(
            sizes, options, dtype, sizes.batch, sizes.key_length, ragged, all_queries=True, **extra
        )

    def workload(self, output: str = "attention") -> AttentionWorkload:
        """The workload of a call with something to compute."""
        s, o = self.sizes, self.options
        return AttentionWorkload(
            head_dim=s.head_dim,
            value_dim=s.value_dim,
            dtype=self.dtype,
            causal=o.causal,
            batch=s.batch,
            query_heads=s.query_heads,
            kv_heads=s.kv_heads,
            query_length=s.query_length,
            key_length=s.key_length,
            window=o.window,
            mask=None if o.mask is None else o.mask.dtype,
            mask_per_key=o.mask is not None and o.mask.per_key,
            mask_dense=self._dense_mask,
            softcap=o.softcap is not None,
            alibi=o.alibi_slopes is not None,
            sinks=o.sinks is not None,
            ragged=self.ragged is not None,
            paged=self.pages is not None,
            kv_dtype=None if self.scales is None else "int8",
            output=output,
        )

    @property
    def _dense_mask(self) -> bool:
        """Whether a mask has rows of its own for the queries, whose elements are adjacent."""
        mask = self.options.mask
        if mask is None or mask.per_key:
            return False
        return mask.strides[3] == 1 or self.sizes.key_length == 1

    @property
    def causal_offset(self) -> int:
        """The scalar of this name (tvm_attention.compute.bounds)."""
        top_left = self.options.causal == "top_left"
        if self.ragged is not None:
            return int(not top_left)
        return 0 if top_left else self.sizes.key_length - self.sizes.query_length

    @property
    def repeatable(self) -> bool:
        """Whether everything but the addresses of the tensors and the mask is fixed by shapes, strides,
        numbers and what the small arrays hold."""
        return self.pages is None and self.scales is None

    @property
    def small_arrays(self) -> tuple[NDArray[Any], ...]:
        """Copies of the caller's, which kernels read beside the tensors."""
        arrays = (self.options.alibi_slopes, self.options.sinks, self.ragged)
        return tuple(x for x in arrays if x is not None)

    @property
    def mask(self) -> Any:
        """The array that is read as the mask, if any: the caller's or a copy of it."""
        return None if self.options.mask is None else self.options.mask.array

    def scalars(self, threads: int, splits: int) -> tuple[float, ...]:
        """Values of :data:`tvm_attention.arguments.SCALARS`."""
        s = self.sizes
        return (
            s.batch,
            s.query_heads,
            s.query_heads // s.kv_heads,
            s.query_length,
            s.key_length,
            self.kv_batches,
            self.key_rows,
            self.causal_offset,
            threads,
            splits,
            self.options.scale * _LOG2_E,
        )

    def extra_arguments(
        self, workload: AttentionWorkload, kind: ArrayKind, lse: Any
    ) -> tuple[float, ...]:
        """Values of the arguments that the workload's features add, in their order. What they point to
        is kept alive by this call and ``lse``."""
        values = self.extra_values(kind, lse, NumPyArrays().address)
        return tuple(values[a.name] for a in extras(workload))

    def extra_values(
        self, kind: ArrayKind, lse: Any, address: Callable[[Any], int]
    ) -> dict[str, float]:
        """The same by name; ``address`` says where the small arrays beside the tensors are, which this
        call has on the processor or, torch tensors, where the others are."""
        o = self.options
        values: dict[str, float] = {}
        if o.window is not None:
            left, right = (_ALL if n == UNBOUNDED else n for n in o.window)
            values["window_left"] = left
            values["window_right"] = 0 if o.causal is not None else right
        if o.softcap is not None:
            values["softcap_log2"] = o.softcap * _LOG2_E
        small = {"slopes": o.alibi_slopes, "sinks": o.sinks, "ragged": self.ragged}
        values |= {n: address(x) for n, x in small.items() if x is not None}
        if o.mask is not None:
            values["mask"] = kind.address(o.mask.array)
            values |= _strides("mask", ("batch", "head", "row", "column"), o.mask.strides)
        if self.pages is not None:
            values["table"] = address(self.pages.table)
            values["table_batch_stride"] = self.pages.table.shape[1]
            values["page_shift"] = self.pages.shift
            values["key_page_stride"] = self.pages.key_stride
            values["value_page_stride"] = self.pages.value_stride
        if self.scales is not None:
            s = self.scales
            for name, array, strides in (
                ("key_scale", s.key, s.key_strides),
                ("value_scale", s.value, s.value_strides),
            ):
                values[name] = address(array)
                values |= _strides(name, ("batch", "head", "row"), strides)
        if lse is not None:
            values["lse"] = kind.address(lse)
            batch, head, _ = _three(kind.strides(lse))
            values |= {"lse_batch_stride": batch, "lse_head_stride": head}
        return values


def ragged_fields(batch: int, queries: Any, keys: Any) -> Any:
    """``Call.ragged`` of batch elements of so many rows each, which begin at their batch stride: a NumPy
    array, or a tensor where ``queries`` or ``keys`` are tensors on a GPU."""
    there = next((x for x in (keys, queries) if hasattr(x, "new_zeros")), None)
    ragged = np.zeros((batch, 4), np.int32) if there is None else there.new_zeros((batch, 4))
    ragged[:, RAGGED_FIELDS.index("queries")] = queries
    ragged[:, RAGGED_FIELDS.index("keys")] = keys
    return ragged


def _strides(name: str, axes: tuple[str, ...], strides: Shape) -> dict[str, float]:
    return {f"{name}_{axis}_stride": s for axis, s in zip(axes, strides, strict=True)}


def _three(strides: Shape) -> Shape:
    """(batch, head, row) strides of a tensor of rows with or without its leading axes."""
    if len(strides) == 3:
        return strides
    return (0, 0, *strides) if len(strides) == 1 else (strides[0], 0, strides[1])
