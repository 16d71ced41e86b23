"""A loaded kernel and the calls it serves."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from tvm_attention.arrays import ArrayKind, Shape, is_dense, kind_of
from tvm_attention.compiler import CompiledKernel
from tvm_attention.database import TuningRecord
from tvm_attention.errors import InvalidTypeError, InvalidValueError, UnsupportedError
from tvm_attention.operands import (
    Geometry,
    check_scale,
    geometry,
    kernel_strides,
    opened_inputs,
)
from tvm_attention.prepared import PreparedCall
from tvm_attention.remembered import RememberedCalls
from tvm_attention.schedules import Candidate
from tvm_attention.threads import launcher
from tvm_attention.workload import AttentionWorkload

_SPLIT_KEYS = 128  # fewer keys than this are not worth a split of their own
_SPLIT_SCORES = 1 << 13  # scores of a split at most: they stay in L1 together with their weights
_SPLIT_MOST_KEYS = 1 << 11  # keys of a split at most: K and V of a split meet in L2
_MOST_WORKSPACE = 1 << 33  # bytes: kernels count its float32 elements by 32-bit integers


@dataclass(frozen=True, slots=True)
class KernelSource:
    """Where a kernel's schedule came from: ``record`` is None for the default schedule."""

    candidate: Candidate
    record: TuningRecord | None
    rung: str
    reasons: tuple[str, ...]

    @property
    def kind(self) -> str:
        """ "tuned" or "default"."""
        return "default" if self.record is None else "tuned"

    def __str__(self) -> str:
        if self.record is None:
            return f"default schedule ({self.candidate})"
        return f"tuned ({self.rung}): {self.record} ({self.candidate})"


class Kernel:
    """Attention compiled for one kind of workload: call it on query, key and value.

    It serves every batch, number of heads and lengths; head dimensions and causality are those of
    :attr:`workload`. :attr:`source` says which tuning record it was built from.
    """

    def __init__(
        self,
        workload: AttentionWorkload,
        source: KernelSource,
        compiled: CompiledKernel,
        num_threads: int | None = None,
    ) -> None:
        self.workload = workload
        self.source = source
        self.num_threads = num_threads
        self._compiled = compiled
        self._remembered = RememberedCalls(threads_follow_pool=num_threads is None)

    def __call__(
        self, query: Any, key: Any, value: Any, out: Any = None, *, scale: float | None = None
    ) -> Any:
        """softmax(scale * query key^T) value, as an array of the query's kind.

        query (B, Hq, L, E), key (B, Hkv, S, E), value (B, Hkv, S, Ev) of the workload's dtype, any
        strides, read in place when the last axis is dense, copied otherwise; also (B, L, E) and
        (L, E). Hq may be a multiple of Hkv. ``out``, if given, is (B, Hq, L, Ev) with a dense last axis
        and shares no memory with the inputs. ``scale`` defaults to 1 / sqrt(E).

        Raises InvalidValueError, InvalidTypeError or UnsupportedError before anything is computed.
        """
        if type(scale) is not float and scale is not None:
            scale = check_scale(scale, 1)
        if out is None:
            result = self._remembered.run(query, key, value, (scale,))
            if result is not None:
                return result
        kind = kind_of(query)
        inputs = opened_inputs(kind, query, key, value)
        sizes = geometry(*(kind.shape(x) for x in inputs), enable_gqa=True)
        self._check_dims(sizes)
        factor = check_scale(scale, sizes.head_dim)
        if out is not None:
            self.compute(kind, sizes, inputs, _opened_out(kind, out, sizes, inputs), factor)
            return out
        result = kind.empty(sizes.out_shape, inputs[0])
        prepared = self.compute(kind, sizes, inputs, result, factor)
        if prepared is not None:
            self._remembered.add(inputs, (scale,), prepared, result)
        return kind.own_kind(result, query)

    def __repr__(self) -> str:
        return f"Kernel({self.source})"

    def compute(
        self, kind: ArrayKind, sizes: Geometry, inputs: tuple[Any, Any, Any], out: Any, scale: float
    ) -> PreparedCall | None:
        """Write attention into ``out``; everything has been checked.

        Returns the call, if it can be run again on other arrays of the same shapes and strides.
        """
        if sizes.empty:
            return None
        if sizes.key_length == 0:
            out[...] = 0.0  # a row that may attend to nothing
            return None
        dense = [x if is_dense(kind.shape(x), kind.strides(x)) else kind.dense(x) for x in inputs]
        strides = tuple(kind.strides(x) for x in (*dense, out))
        call = self.prepare(sizes, strides, scale)
        call.run(*(kind.address(x) for x in (*dense, out)))
        in_place = all(x is y for x, y in zip(dense, inputs, strict=True))
        return call if in_place else None

    def prepare(self, sizes: Geometry, strides: tuple[Shape, ...], scale: float) -> PreparedCall:
        """The scalars of a call, fixed by extents, strides of (query, key, value, out) and scale."""
        threads = self.num_threads or launcher().max_threads()
        scalars = (
            sizes.batch,
            sizes.query_heads,
            sizes.query_heads // sizes.kv_heads,
            sizes.query_length,
            sizes.key_length,
            self._causal_offset(sizes),
            threads,
            self._splits(sizes, threads),
            scale * math.log2(math.e),
        )
        flat = tuple(s for x in strides for s in kernel_strides(x))
        size = self._compiled.workspace(*scalars)
        if size > _MOST_WORKSPACE:
            raise UnsupportedError(
                f"sizes: expected at most {_MOST_WORKSPACE >> 30} GiB of scratch memory, got "
                f"{size / (1 << 30):.1f} GiB for {sizes}; call on parts of the batch or of the heads"
            )
        return PreparedCall(self._compiled.main, size, threads, (*scalars, *flat))

    def _check_dims(self, sizes: Geometry) -> None:
        w = self.workload
        if (sizes.head_dim, sizes.value_dim) != (w.head_dim, w.value_dim):
            raise InvalidValueError(
                f"head dimensions: expected {w.head_dim} and value {w.value_dim}, which this kernel "
                f"was loaded for, got {sizes.head_dim} and {sizes.value_dim}; load one for those"
            )
        if self.source.candidate.variant == "split_kv":
            rows = sizes.query_heads // max(sizes.kv_heads, 1) * sizes.query_length
            most = int(w.length_class.removeprefix("decode-r"))
            if rows > most:
                raise InvalidValueError(
                    f"query: expected at most {most} rows a key-value head, which this decoding "
                    f"kernel was loaded for, got {rows}; load one for this query length"
                )

    def _causal_offset(self, sizes: Geometry) -> int:
        bottom_right = self.workload.causal == "bottom_right"
        return sizes.key_length - sizes.query_length if bottom_right else 0

    def _splits(self, sizes: Geometry, threads: int) -> int:
        """Runs of keys that split-KV computes apart: so many that every thread gets the same number
        of tasks, and that a task's scores stay in cache."""
        if self.source.candidate.variant != "split_kv":
            return 1
        tasks = sizes.batch * sizes.kv_heads
        rows = int(self.workload.length_class.removeprefix("decode-r"))
        most = max(1, sizes.key_length // _SPLIT_KEYS)
        keys = min(_SPLIT_MOST_KEYS, _SPLIT_SCORES // rows)
        least = min(most, -(-sizes.key_length // keys))
        for splits in range(least, min(most, least + threads) + 1):
            if tasks * splits % threads == 0 or tasks * splits >= 8 * threads:
                return splits
        return least if tasks >= threads else most if most < threads else least


def _opened_out(kind: ArrayKind, out: Any, sizes: Geometry, inputs: tuple[Any, ...]) -> Any:
    out = kind.opened("out", out)
    shape, strides = kind.shape(out), kind.strides(out)
    if shape != sizes.out_shape:
        raise InvalidValueError(f"out: expected shape {sizes.out_shape}, got {shape}")
    if kind.dtype(out) != kind.dtype(inputs[0]):
        raise InvalidTypeError(f"out: expected {kind.dtype(inputs[0])}, got {kind.dtype(out)}")
    if not is_dense(shape, strides):
        raise InvalidValueError(f"out: expected a dense last axis, got strides {strides}")
    if getattr(getattr(out, "flags", None), "writeable", True) is False:
        raise InvalidValueError("out: expected a writable array, got a read-only one")
    if _overlaps_itself(shape, strides):
        raise InvalidValueError(
            f"out: expected distinct elements, got shape {shape} with strides {strides}"
        )
    start, end = _extent(kind, out)
    for name, array in zip(("query", "key", "value"), inputs, strict=True):
        first, last = _extent(kind, array)
        if first < end and start < last:
            raise InvalidValueError(f"out: expected memory of its own, got memory of {name}")
    return out


def _overlaps_itself(shape: Shape, strides: Shape) -> bool:
    """Whether an axis steps into what the axes of smaller strides have filled. (Axes that interleave
    without meeting count as overlapping: no layout in use does that.)"""
    if 0 in shape:
        return False
    filled = 0
    for stride, extent in sorted(zip(map(abs, strides), shape, strict=True)):
        if extent > 1:
            if stride <= filled:
                return True
            filled += (extent - 1) * stride
    return False


def _extent(kind: ArrayKind, array: Any) -> tuple[int, int]:
    """First and one past the last address of an array's elements (strides are never negative here
    for torch; NumPy's may be)."""
    shape, strides, address = kind.shape(array), kind.strides(array), kind.address(array)
    if 0 in shape:
        return address, address
    reach = [(n - 1) * s * 4 for n, s in zip(shape, strides, strict=True)]
    low, high = sum(min(r, 0) for r in reach), sum(max(r, 0) for r in reach)
    return address + low, address + high + 4
