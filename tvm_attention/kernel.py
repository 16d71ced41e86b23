"""A loaded kernel and the calls it serves."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from tvm_attention.arguments import SCALARS, arrays_beside
from tvm_attention.arrays import ArrayKind, Shape, is_dense, kind_of
from tvm_attention.call import Call
from tvm_attention.errors import InvalidTypeError, InvalidValueError, UnsupportedError
from tvm_attention.kernel_source import ArchiveSource, KernelSource
from tvm_attention.operands import (
    check_scale,
    geometry,
    kernel_strides,
    opened_inputs,
)
from tvm_attention.options import opened_options
from tvm_attention.outputs import no_keys, opened_out
from tvm_attention.prepared import PreparedCall
from tvm_attention.remembered import RememberedCalls
from tvm_attention.signatures import signature
from tvm_attention.splits import most_rows, splits
from tvm_attention.threads import launcher
from tvm_attention.workload import AttentionWorkload
from tvm_attention.workload_text import feature_text
from tvm_attention.worth_threads import worth_threads

if TYPE_CHECKING:
    from tvm_attention.compiler import CompiledKernel

_MOST_WORKSPACE = 1 << 33  # bytes: kernels count its float32 elements by 32-bit integers


class Kernel:
    """Attention compiled for one kind of workload: call it on query, key and value.

    It serves every batch, number of heads and lengths; head dimensions and causality are those of
    :attr:`workload`. :attr:`source` says which tuning record it was built from, or which archive has it.
    """

    def __init__(
        self,
        workload: AttentionWorkload,
        source: KernelSource | ArchiveSource,
        compiled: CompiledKernel | None,
        num_threads: int | None = None,
    ) -> None:
        self.workload = workload
        self.source = source
        self.num_threads = num_threads
        self._compiled = compiled
        self.decodes = isinstance(source, KernelSource) and source.candidate.decodes
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
        options = signature(None, window, softcap, alibi_slopes, sinks, kv_lengths)
        if options is not None:
            result = self._remembered.run(query, key, value, (scale, options), mask, out)
            if result is not None:
                return result
        kind = self._kind_of(query)
        inputs = opened_inputs(kind, query, key, value)
        sizes = geometry(*(kind.shape(x) for x in inputs), enable_gqa=True)
        opened = opened_options(
            kind, sizes, query_dtype=kind.dtype(inputs[0]), mask=mask, causal=self.workload.causal,
            window=window, softcap=softcap, alibi_slopes=alibi_slopes, sinks=sinks,
            kv_lengths=kv_lengths, scale=scale,
        )  # fmt: skip
        call = Call.of(sizes, opened, kind.dtype(inputs[0]))
        self._check(call)
        if out is None:
            result = kind.empty(sizes.out_shape, inputs[0])
        else:
            result = opened_out(kind, out, sizes.out_shape, inputs, call.mask)
        prepared = self.compute(kind, call, inputs, result)
        if options is not None and prepared is not None and call.mask is mask:
            self._remembered.add((query, key, value), (scale, options), prepared, result, mask, out)
        return kind.own_kind(result, query) if out is None else out

    def __repr__(self) -> str:
        return f"Kernel({self.source})"

    def _kind_of(self, query: Any) -> ArrayKind:
        return kind_of(query)

    def compute(
        self, kind: ArrayKind, call: Call, inputs: tuple[Any, Any, Any], out: Any, lse: Any = None
    ) -> PreparedCall | None:
        """Write attention into ``out`` and, where the kernel has it, the log-sum-exp of every row into
        ``lse``; everything has been checked.

        Returns the call, if it can be run again on other arrays of the same shapes and strides, another
        mask and another ``lse`` among them.
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
        return prepared if in_place and call.repeatable else None

    def prepare(
        self, kind: ArrayKind, call: Call, strides: tuple[Shape, ...], lse: Any = None
    ) -> PreparedCall:
        """All arguments but the addresses of (query, key, value, out), whose strides are given."""
        sizes = call.sizes
        threads = self.num_threads or launcher().max_threads()
        tasks = sizes.batch * (sizes.kv_heads if self.decodes else sizes.query_heads)
        used = worth_threads(threads, tasks, sizes.key_operations * sizes.key_length)
        scalars = call.scalars(used, splits(self.workload, sizes, used) if self.decodes else 1)
        flat = tuple(s for x in strides for s in kernel_strides(x))
        extra = call.extra_arguments(self.workload, kind, lse)
        return self.prepare_with(threads, (*scalars, *flat, *extra), call.small_arrays)

    def prepare_with(
        self, threads: int, arguments: tuple[float, ...], kept: tuple[Any, ...] = ()
    ) -> PreparedCall:
        """A call of these arguments, of which the first are tvm_attention.arguments.SCALARS; some are the
        addresses of what is ``kept``."""
        assert self._compiled is not None  # kernels of other machines do not come here
        size = self._compiled.workspace(*arguments[: len(SCALARS)])
        if size > _MOST_WORKSPACE:
            raise UnsupportedError(
                f"sizes: expected at most {_MOST_WORKSPACE >> 30} GiB of scratch memory, got "
                f"{size / (1 << 30):.1f} GiB for {dict(zip(SCALARS, arguments, strict=False))}; call on "
                f"parts of the batch or of the heads"
            )
        beside = arrays_beside(self.workload)
        return PreparedCall(self._compiled.main, size, threads, arguments, beside, kept)

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
            if wanted.mask is not None:  # code for masks of any layout reads the simpler ones, too
                per_key, dense = wanted.mask_per_key, wanted.mask_dense
                wanted = replace(
                    wanted,
                    mask_per_key=per_key and w.mask_per_key,
                    mask_dense=dense and w.mask_dense,
                )
            if wanted.kernel_features != w.kernel_features:
                raise InvalidValueError(
                    f"options: expected those this kernel was loaded for ({feature_text(w)}), got "
                    f"{feature_text(wanted)}; load one for those"
                )
        if self.decodes:
            rows = sizes.query_heads // max(sizes.kv_heads, 1) * sizes.query_length
            most = most_rows(w)
            if rows > most:
                raise InvalidValueError(
                    f"query: expected at most {most} rows a key-value head, which this decoding "
                    f"kernel was loaded for, got {rows}; load one for this query length"
                )
