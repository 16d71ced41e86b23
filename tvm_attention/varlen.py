"""Attention of sequences of different lengths packed one behind the other: nothing is padded."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tvm_attention.arguments import RAGGED_FIELDS
from tvm_attention.arrays import ArrayKind, is_dense
from tvm_attention.call import Call
from tvm_attention.cuda.kinds import call_kind, gpu_of
from tvm_attention.errors import InvalidValueError
from tvm_attention.loading import load
from tvm_attention.operands import check_flag, geometry, opened_inputs
from tvm_attention.options import opened_options
from tvm_attention.outputs import no_keys, opened_out
from tvm_attention.small_arrays import whole_numbers

_Inputs = tuple[Any, Any, Any]


@dataclass(frozen=True, slots=True, eq=False)
class _Packed:
    """A checked call and its arrays, (rows, heads, dim) each with a dense last axis."""

    kind: ArrayKind
    inputs: _Inputs
    call: Call


def attention_varlen(
    query: Any,
    key: Any,
    value: Any,
    cu_seqlens_q: Any,
    cu_seqlens_k: Any,
    *,
    causal: str | None = None,
    window: tuple[int, int] | None = None,
    softcap: float | None = None,
    alibi_slopes: Any = None,
    sinks: Any = None,
    scale: float | None = None,
    return_lse: bool = False,
    out: Any = None,
) -> Any:
    """:func:`tvm_attention.attention` of each of several sequences, whose rows lie one behind the other.

    query (Tq, Hq, E), key (Tk, Hkv, E), value (Tk, Hkv, Ev), float32, float16 or bfloat16, of one kind:
    NumPy arrays, torch tensors or anything with DLPack, on the processor or a GPU; any strides, read in
    place while the last axis is dense. Hq may be a multiple of Hkv. Rows ``cu_seqlens_q[n]`` up to before
    ``cu_seqlens_q[n + 1]`` of the query are those of sequence n, and likewise ``cu_seqlens_k`` for key and
    value: each one number longer than there are sequences, from 0 to Tq and to Tk. (Offsets on a GPU have
    to be waited for: the grids of its kernels follow from them.) A sequence may have no queries, no keys
    or neither; where it has no keys, its queries give zeros.

    Within a sequence the options mean what they mean to ``attention``: causal="bottom_right" lets its
    last query see its last key, whatever the two lengths; ``alibi_slopes`` is (Hq,) or (sequences, Hq).

    Returns (Tq, Hq, Ev), of the query's kind and dtype, in ``out`` if that is given; with ``return_lse``
    followed by the log-sum-exp of every row, float32 (Hq, Tq).

    Raises InvalidValueError (a ValueError), InvalidTypeError (a TypeError) or UnsupportedError (a
    NotImplementedError) before anything is computed.
    """
    check_flag("return_lse", return_lse)
    packed = _opened(
        query, key, value, cu_seqlens_q, cu_seqlens_k, causal=causal, window=window, softcap=softcap,
        alibi_slopes=alibi_slopes, sinks=sinks, scale=scale,
    )  # fmt: skip
    kind, first = packed.kind, packed.inputs[0]
    rows, heads, _ = kind.shape(first)
    shape = (rows, heads, packed.call.sizes.value_dim)
    made = kind.empty(shape, first) if out is None else opened_out(kind, out, shape, packed.inputs)
    lse = kind.empty((heads, rows), first, "float32") if return_lse else None
    _compute(packed, made, lse)
    result = kind.own_kind(made, query) if out is None else out
    return (result, kind.own_kind(lse, query)) if return_lse else result


def _opened(
    query: Any, key: Any, value: Any, cu_seqlens_q: Any, cu_seqlens_k: Any, **options: Any
) -> _Packed:
    kind = call_kind(query)
    inputs = opened_inputs(kind, query, key, value)
    for name, array in zip(("query", "key", "value"), inputs, strict=True):
        if len(kind.shape(array)) != 3:
            raise InvalidValueError(
                f"{name}: expected (rows of all sequences, heads, dim), got shape {kind.shape(array)}"
            )
    (tq, hq, e), (tk, hk, ek), (tv, hv, ev) = (kind.shape(x) for x in inputs)
    packed = geometry((1, hq, tq, e), (1, hk, tk, ek), (1, hv, tv, ev), enable_gqa=True)
    starts, ends = _offsets("cu_seqlens_q", cu_seqlens_q, tq, "query")
    key_starts, key_ends = _offsets("cu_seqlens_k", cu_seqlens_k, tk, "key")
    if len(starts) != len(key_starts):
        raise InvalidValueError(
            f"cu_seqlens_q and cu_seqlens_k: expected offsets of as many sequences each, got "
            f"{len(starts)} and {len(key_starts)}"
        )
    fields = {
        "query_start": starts, "queries": ends - starts,
        "key_start": key_starts, "keys": key_ends - key_starts,
    }  # fmt: skip
    ragged = np.stack([fields[name] for name in RAGGED_FIELDS], axis=1).astype(np.int32)
    sizes = replace(
        packed,
        batch=len(starts),
        query_length=int(fields["queries"].max(initial=0)),
        key_length=int(fields["keys"].max(initial=0)),
    )
    dtype = kind.dtype(inputs[0])
    checked = opened_options(kind, sizes, query_dtype=dtype, **options)
    first, second, third = (
        x if is_dense(kind.shape(x), kind.strides(x)) else kind.dense(x) for x in inputs
    )
    call = Call(sizes, checked, dtype, kv_batches=1, key_rows=tk, ragged=ragged)
    return _Packed(kind, (first, second, third), call)


def _offsets(
    name: str, given: Any, rows: int, tensor: str
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """First and one past the last row of each sequence."""
    offsets = whole_numbers(name, given)
    if offsets.ndim != 1 or offsets.size < 1:
        raise InvalidValueError(
            f"{name}: expected shape (sequences + 1,), the first row of each sequence and the number "
            f"of all rows, got shape {offsets.shape}"
        )
    offsets = offsets.astype(np.int64)
    if offsets[0] != 0:
        raise InvalidValueError(
            f"{name}: expected 0 first, where the first sequence begins, got {offsets[0]}"
        )
    falls = np.flatnonzero(offsets[1:] < offsets[:-1])
    if falls.size:
        n = int(falls[0])
        raise InvalidValueError(
            f"{name}: expected offsets that do not decrease, got {offsets[n]} and then "
            f"{offsets[n + 1]} at {n + 1}; lengths become offsets by a cumulative sum after a 0"
        )
    if offsets[-1] != rows:
        raise InvalidValueError(
            f"{name}: expected {rows} last, the rows of {tensor}, got {offsets[-1]}"
        )
    return offsets[:-1], offsets[1:]


def _compute(packed: _Packed, out: Any, lse: Any) -> None:
    kind, call, sizes = packed.kind, packed.call, packed.call.sizes
    if sizes.empty or sizes.key_length == 0:
        no_keys(kind, call, out, None if lse is None else lse[None])
        return
    workload = call.workload("attention" if lse is None else "attention_and_lse")
    query, key, value, result = (_for_each(kind, x, sizes.batch) for x in (*packed.inputs, out))
    if lse is not None:
        lse = kind.expanded(lse, (sizes.batch, *kind.shape(lse)))
    gpu = gpu_of(kind, packed.inputs[0])
    kernel = load(workload) if gpu is None else load(workload, gpu)
    kernel.compute(kind, call, (query, key, value), result, lse)


def _for_each(kind: ArrayKind, array: Any, batch: int) -> Any:
    """(rows, heads, dim) as (batch, heads, rows, dim) with stride 0 from one sequence to the next."""
    return kind.swapped_heads(kind.expanded(array, (batch, *kind.shape(array))))
