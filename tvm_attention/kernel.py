"""A loaded kernel and the calls it serves."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from tvm_attention.arguments import mask_index
from tvm_attention.arrays import ArrayKind, Shape, is_dense, kind_of
from tvm_attention.call import Call
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
from tvm_attention.options import opened_options
from tvm_attention.outputs import no_keys, opened_out
from tvm_attention.prepared import PreparedCall
from tvm_attention.remembered import RememberedCalls
from tvm_attention.schedules import Candidate
from tvm_attention.threads import launcher
from tvm_attention.workload import AttentionWorkload, feature_text

_SPLIT_KEYS = 128  # fewer keys than this are not worth a split of their own
_SPLIT_SCORES = 1 << 13  # scores of a split at most: they stay in L1 together with their weights
_SPLIT_MOST_KEYS = 1 << 11  # keys of a split at most: K and V of a split meet in L2
_MOST_WORKSPACE = 1 << 33  # bytes: kernels count its float32 elements by 32-bit integers


@dataclass(frozen=True, slots=True)
class KernelSource:
    """Where a kernel's schedule came from: ``record`` is None for the default schedule. ``level`` is the
    instruction-set level it is built for, where the record's is lower than the machine's."""

    candidate: Candidate
    record: TuningRecord | None
    rung: str
    reasons: tuple[str, ...]
    level: str | None = None

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
        self,
        query: Any,
        key: Any,
        value: Any,
        out: Any = None,
        *,
        scale: float | None = None,
        mask: Any = None,
        window: tuple[int, int] | None = None,
        softcap: float | None = None,
        alibi_slopes: Any = None,
        sinks: Any = None,
        kv_lengths: Any = None,
    ) -> Any:
        """softmax(scale * query key^T) value, as an array of the query's kind.

        query (B, Hq, L, E), key (B, Hkv, S, E), value (B, Hkv, S, Ev) of the workload's dtype, any
        strides, read in place when the last axis is dense, copied otherwise; also (B, L, E) and
        (L, E). Hq may be a multiple of Hkv. ``out``, if given, is (B, Hq, L, Ev) with a dense last axis
        and shares no memory with the inputs and the mask. ``scale`` defaults to 1 / sqrt(E). The other
        options are those of :func:`tvm_attention.attention`; which of them are given is part of the
        workload.

        Raises InvalidValueError, InvalidTypeError or UnsupportedError before anything is computed.
        """
        if type(scale) is not float and scale is not None:
            scale = check_scale(scale, 1)
        others = (window, softcap, alibi_slopes, sinks, kv_lengths, out)
        repeatable = all(x is None for x in others)
        if repeatable:
            result = self._remembered.run(query, key, value, (scale,), mask)
            if result is not None:
                return result
        kind = kind_of(query)
        inputs = opened_inputs(kind, query, key, value)
        sizes = geometry(*(kind.shape(x) for x in inputs), enable_gqa=True)
        opened = opened_options(
            kind, sizes, query_dtype=kind.dtype(inputs[0]), mask=mask, causal=self.workload.causal,
            window=window, softcap=softcap, alibi_slopes=alibi_slopes, sinks=sinks,
            kv_lengths=kv_lengths, scale=scale,
        )  # fmt: skip
        call = Call.of(sizes, opened, kind.dtype(inputs[0]))
        self._check(call)
        if out is not None:
            result = opened_out(kind, out, sizes.out_shape, inputs, call.mask)
            self.compute(kind, call, inputs, result)
            return out
        result = kind.empty(sizes.out_shape, inputs[0])
        prepared = self.compute(kind, call, inputs, result)
        if repeatable and prepared is not None and call.mask is mask:
            self._remembered.add(inputs, (scale,), prepared, result, mask)
        return kind.own_kind(result, query)

    def __repr__(self) -> str:
        return f"Kernel({self.source})"

    def compute(
        self, kind: ArrayKind, call: Call, inputs: tuple[Any, Any, Any], out: Any, lse: Any = None
    ) -> PreparedCall | None:
        """Write attention into ``out`` and, where the kernel has it, the log-sum-exp of every row into
        ``lse``; everything has been checked.

        Returns the call, if it can be run again on other arrays and another mask of the same shapes
        and strides.
        """
        sizes = call.sizes
        if sizes.empty or sizes.key_length == 0:
            no_keys(kind, call, out, lse)
            return None
        dense = [x if is_dense(kind.shape(x), kind.strides(x)) else kind.dense(x) for x in inputs]
        strides = tuple(kind.strides(x) for x in (*dense, out))
        prepared = self.prepare(kind, call, strides, lse)
        prepared.run(*(kind.address(x) for x in (*dense, out)))
        in_place = all(x is y for x, y in zip(dense, inputs, strict=True))
        return prepared if in_place and call.repeatable and lse is None else None

    def prepare(
        self, kind: ArrayKind, call: Call, strides: tuple[Shape, ...], lse: Any = None
    ) -> PreparedCall:
        """All arguments but the addresses of (query, key, value, out), whose strides are given."""
        sizes = call.sizes
        threads = self.num_threads or launcher().max_threads()
        scalars = (
            sizes.batch,
            sizes.query_heads,
            sizes.query_heads // sizes.kv_heads,
            sizes.query_length,
            sizes.key_length,
            call.kv_batches,
            call.key_rows,
            call.causal_offset,
            threads,
            self._splits(sizes, threads),
            call.options.scale * math.log2(math.e),
        )
        flat = tuple(s for x in strides for s in kernel_strides(x))
        size = self._compiled.workspace(*scalars)
        if size > _MOST_WORKSPACE:
            raise UnsupportedError(
                f"sizes: expected at most {_MOST_WORKSPACE >> 30} GiB of scratch memory, got "
                f"{size / (1 << 30):.1f} GiB for {sizes}; call on parts of the batch or of the heads"
            )
        extra = call.extra_arguments(self.workload, kind, lse)
        arguments = (*scalars, *flat, *extra)
        return PreparedCall(
            self._compiled.main, size, threads, arguments, mask_index(self.workload)
        )  # fmt: skip

    def _check(self, call: Call) -> None:
        """That the call is what this kernel was loaded for."""
        w, sizes = self.workload, call.sizes
        if (sizes.head_dim, sizes.value_dim) != (w.head_dim, w.value_dim):
            raise InvalidValueError(
                f"head dimensions: expected {w.head_dim} and value {w.value_dim}, which this kernel "
                f"was loaded for, got {sizes.head_dim} and {sizes.value_dim}; load one for those"
            )
        if call.dtype != w.dtype:
            raise InvalidTypeError(
                f"dtype: expected {w.dtype}, which this kernel was loaded for, got {call.dtype}; load "
                f"one for that"
            )
        if not sizes.empty and sizes.key_length:
            wanted = call.workload(w.output)
            if wanted.kernel_features != w.kernel_features:
                raise InvalidValueError(
                    f"options: expected those this kernel was loaded for ({feature_text(w)}), got "
                    f"{feature_text(wanted)}; load one for those"
                )
        if self.source.candidate.variant == "split_kv":
            rows = sizes.query_heads // max(sizes.kv_heads, 1) * sizes.query_length
            most = int(w.length_class.removeprefix("decode-r"))
            if rows > most:
                raise InvalidValueError(
                    f"query: expected at most {most} rows a key-value head, which this decoding "
                    f"kernel was loaded for, got {rows}; load one for this query length"
                )

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
