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
from tvm_attention.small_arrays import numbers_there, whole_numbers

_Inputs = tuple[Any, Any, Any]
_Most = tuple[int | None, int | None]


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
    max_seqlen_q: int | None = None,
    max_seqlen_k: int | None = None,
    return_lse: bool = False,
    out: Any = None,
) -> Any:
    """:func:`tvm_attention.attention` of each of several sequences, whose rows lie one behind the other.

    query (Tq, Hq, E), key (Tk, Hkv, E), value (Tk, Hkv, Ev), float32, float16 or bfloat16, of one kind:
    NumPy arrays, torch tensors or anything with DLPack, on the processor or a GPU; any strides, read in
    place while the last axis is dense. Hq may be a multiple of Hkv. Rows ``cu_seqlens_q[n]`` up to before
    ``cu_seqlens_q[n + 1]`` of the query are those of sequence n, and likewise ``cu_seqlens_k`` for key and
    value: each one number longer than there are sequences, from 0 to Tq and to Tk. A sequence may have no
    queries, no keys or neither; where it has no keys, its queries give zeros.

    Offsets that are torch tensors on the query's GPU are read there: nobody waits for them nor looks whether
    they fit, and rows of sequences beyond Tq or Tk are left out. ``max_seqlen_q`` and ``max_seqlen_k``, the
    longest sequences or more, then keep the grids of kernels small (default Tq and Tk); queries beyond the
    former may be left out. Other offsets say it themselves.

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
        alibi_slopes=alibi_slopes, sinks=sinks, scale=scale, most=(max_seqlen_q, max_seqlen_k),
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
    query: Any, key: Any, value: Any, cu_seqlens_q: Any, cu_seqlens_k: Any, *, most: _Most,
    **options: Any,
) -> _Packed:  # fmt: skip
    kind = call_kind(query)
    inputs = opened_inputs(kind, query, key, value)
    for name, array in zip(("query", "key", "value"), inputs, strict=True):
        if len(kind.shape(array)) != 3:
            raise InvalidValueError(
                f"{name}: expected (rows of all sequences, heads, dim), got shape {kind.shape(array)}"
            )
    (tq, hq, e), (tk, hk, ek), (tv, hv, ev) = (kind.shape(x) for x in inputs)
    packed = geometry((1, hq, tq, e), (1, hk, tk, ek), (1, hv, tv, ev), enable_gqa=True)
    ragged, longest = _sequences(kind, inputs[0], (cu_seqlens_q, cu_seqlens_k), (tq, tk), most)
    sizes = replace(packed, batch=len(ragged), query_length=longest[0], key_length=longest[1])
    dtype = kind.dtype(inputs[0])
    checked = opened_options(kind, sizes, query_dtype=dtype, **options)
    first, second, third = (
        x if is_dense(kind.shape(x), kind.strides(x)) else kind.dense(x) for x in inputs
    )
    call = Call(sizes, checked, dtype, kv_batches=1, key_rows=tk, ragged=ragged)
    return _Packed(kind, (first, second, third), call)


def _sequences(
    kind: Any, query: Any, offsets: tuple[Any, Any], rows: tuple[int, int], most: _Most
) -> tuple[Any, tuple[int, int]]:
    """``Call.ragged`` of packed sequences; rows that none has more of, of the query and of the key."""
    for name, number in zip(("max_seqlen_q", "max_seqlen_k"), most, strict=True):
        if number is not None and (
            isinstance(number, bool) or not isinstance(number, int) or number < 0
        ):
            raise InvalidValueError(f"{name}: expected a whole number or None, got {number!r}")
    names = ("cu_seqlens_q", "cu_seqlens_k")
    edges: list[Any]
    there = [numbers_there(kind, x) for x in offsets]
    if all(x is None for x in there):
        parts = zip(names, offsets, rows, ("query", "key"), strict=True)
        edges = [_offsets(*part) for part in parts]
        longest = [int((x[1:] - x[:-1]).max(initial=0)) for x in edges]
    else:
        edges = [
            kind.uploaded(whole_numbers(n, x).astype(np.int32), query) if y is None else y
            for n, x, y in zip(names, offsets, there, strict=True)
        ]
        for name, edge in zip(names, edges, strict=True):
            _check_axes(name, edge)
        edges = [x.clamp(0, n) for x, n in zip(edges, rows, strict=True)]
        longest = [n if m is None else min(m, n) for n, m in zip(rows, most, strict=True)]
    counts = [len(x) - 1 for x in edges]
    if counts[0] != counts[1]:
        raise InvalidValueError(
            f"cu_seqlens_q and cu_seqlens_k: expected offsets of as many sequences each, got "
            f"{counts[0]} and {counts[1]}"
        )
    return _ragged(edges), (longest[0], longest[1])


def _ragged(edges: list[Any]) -> Any:
    """(sequences, 4), of NumPy arrays or tensors of offsets."""
    (first, last), (key_first, key_last) = ((x[:-1], x[1:]) for x in edges)
    fields = {
        "query_start": first, "queries": (last - first).clip(0),
        "key_start": key_first, "keys": (key_last - key_first).clip(0),
    }  # fmt: skip
    if isinstance(first, np.ndarray):
        return np.stack([fields[name] for name in RAGGED_FIELDS], axis=1).astype(np.int32)
    made = first.new_empty((len(first), len(RAGGED_FIELDS)))
    for n, name in enumerate(RAGGED_FIELDS):
        made[:, n] = fields[name]
    return made


def _check_axes(name: str, offsets: Any) -> None:
    if offsets.ndim != 1 or len(offsets) < 1:
        raise InvalidValueError(
            f"{name}: expected shape (sequences + 1,), the first row of each sequence and the number "
            f"of all rows, got shape {tuple(offsets.shape)}"
        )


def _offsets(name: str, given: Any, rows: int, tensor: str) -> NDArray[np.int64]:
    """Offsets on the processor, checked."""
    offsets = whole_numbers(name, given)
    _check_axes(name, offsets)
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
    return offsets


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
