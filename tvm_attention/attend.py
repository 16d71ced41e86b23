"""From a caller's arrays and options to results: checked, then computed by the kernels that fit."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from tvm_attention.arrays import ArrayKind, TorchCudaTensors
from tvm_attention.broadcasting import broadcast
from tvm_attention.call import Call
from tvm_attention.cuda.kinds import call_kind, gpu_of, is_on_a_gpu
from tvm_attention.errors import InvalidValueError, UnsupportedError
from tvm_attention.kernel import Kernel
from tvm_attention.loading import load
from tvm_attention.operands import check_flag, geometry, opened_inputs
from tvm_attention.options import opened_options
from tvm_attention.outputs import no_keys, no_queries, opened_out
from tvm_attention.prepared import PreparedCall

LAYOUTS = ("bhsd", "bshd")
UNITS = 256  # columns of weights at a time: one kernel serves all lengths


@dataclass(frozen=True, slots=True, eq=False)
class Opened:
    """A checked call and its arrays as (batch, heads, rows, dim); ``query`` is the caller's."""

    query: Any
    kind: ArrayKind
    inputs: tuple[Any, Any, Any]
    call: Call
    rows_first: bool


@dataclass(slots=True)
class Done:
    """What a call computed, in the caller's layout."""

    out: Any
    extra: tuple[Any, ...]
    prepared: PreparedCall | None

    def returned(self) -> Any:
        """The result, or a tuple of it and what was asked for beside it."""
        return (self.out, *self.extra) if self.extra else self.out


def opened(
    query: Any,
    key: Any,
    value: Any,
    *,
    layout: str = "bhsd",
    enable_gqa: bool = True,
    broadcasts: bool = False,
    mask_name: str = "mask",
    **options: Any,
) -> Opened:
    """Check a call; with ``broadcasts``, of inputs whose leading axes may differ.

    Raises InvalidValueError, InvalidTypeError or UnsupportedError.
    """
    if layout not in LAYOUTS:
        raise InvalidValueError(
            f"layout: expected {' or '.join(map(repr, LAYOUTS))}, got {layout!r}"
        )
    kind = call_kind(query)
    inputs = opened_inputs(kind, query, key, value)
    rows_first = layout == "bshd"
    if rows_first:
        for name, array in zip(("query", "key", "value"), inputs, strict=True):
            if len(kind.shape(array)) != 4:
                raise InvalidValueError(
                    f"{name}: expected (batch, rows, heads, dim) with layout='bshd', got shape "
                    f"{kind.shape(array)}"
                )
        first, second, third = (kind.swapped_heads(x) for x in inputs)
        inputs = (first, second, third)
    if broadcasts:
        inputs = broadcast(kind, inputs, enable_gqa=enable_gqa)
    sizes = geometry(*(kind.shape(x) for x in inputs), enable_gqa=enable_gqa)
    dtype = kind.dtype(inputs[0])
    checked = opened_options(kind, sizes, query_dtype=dtype, mask_name=mask_name, **options)
    return Opened(query, kind, inputs, Call.of(sizes, checked, dtype), rows_first)


def attend(
    o: Opened, *, out: Any = None, return_lse: bool = False, return_weights: bool = False
) -> Done:
    """Compute a checked call. Raises for an ``out`` that does not fit and for flags that are none."""
    check_flag("return_lse", return_lse)
    check_flag("return_weights", return_weights)
    kind, sizes = o.kind, o.call.sizes
    given = out
    if out is None:
        result = new_result(o)
        out = kind.swapped_heads(result) if o.rows_first else result
    else:
        result = out
        if o.rows_first and len(kind.shape(kind.opened("out", out))) == 4:
            out = kind.swapped_heads(kind.opened("out", out))
        out = opened_out(kind, out, sizes.out_shape, o.inputs, o.call.mask)
    lse = kind.empty(sizes.out_shape[:-1], o.inputs[0], "float32") if return_lse else None
    prepared = _compute(o, "attention_and_lse" if return_lse else "attention", out, lse)
    extra = [kind.own_kind(lse, o.query)] if return_lse else []
    if return_weights:
        shape = (*sizes.out_shape[:-1], sizes.key_length)
        weights = kind.empty(shape, o.inputs[0], o.call.dtype)
        if is_on_a_gpu(kind):
            softmax_rows(o, weights)
        else:
            _compute(o, "weights", weights)
        extra.append(kind.own_kind(weights, o.query))
    if given is None:
        result = kind.own_kind(result, o.query)
    return Done(result, tuple(extra), prepared)


def softmax_rows(o: Opened, weights: Any) -> None:
    """The weights of a call on a GPU: attention whose values are unit vectors, for so many keys at a time as
    a kernel has columns. Raises UnsupportedError for other arrays there than torch's."""
    kind, sizes = o.kind, o.call.sizes
    if not isinstance(kind, TorchCudaTensors):
        raise UnsupportedError(
            f"return_weights: expected torch tensors, or arrays on the processor, got {kind.name}"
        )
    query, key, _ = o.inputs
    call = replace(o.call, sizes=replace(sizes, value_dim=UNITS))
    for start in range(0, sizes.key_length, UNITS):
        units = kind.units(sizes.key_length, start, UNITS, key)
        values = kind.expanded(units, (*kind.shape(key)[:-1], UNITS))
        part = replace(o, inputs=(query, key, values), call=call)
        columns = weights[..., start : start + UNITS]
        whole = columns.shape[-1] == UNITS
        made = columns if whole else kind.empty((*columns.shape[:-1], UNITS), query)
        _compute(part, "attention", made)
        if not whole:
            columns.copy_(made[..., : columns.shape[-1]])


def new_result(o: Opened) -> Any:
    """An array for the result, in the caller's layout."""
    sizes = o.call.sizes
    if not o.rows_first:
        return o.kind.empty(sizes.out_shape, o.inputs[0])
    b, h, rows, dim = sizes.out_shape
    return o.kind.empty((b, rows, h, dim), o.kind.swapped_heads(o.inputs[0]))


def _compute(o: Opened, output: str, out: Any, lse: Any = None) -> PreparedCall | None:
    sizes, prepared = o.call.sizes, None
    if sizes.empty or sizes.key_length == 0:
        no_keys(o.kind, o.call, out, lse)
    else:
        prepared = _kernel(o, output).compute(o.kind, o.call, o.inputs, out, lse)
    no_queries(o.call, out, lse)
    return prepared


def _kernel(o: Opened, output: str) -> Kernel:
    workload, gpu = o.call.workload(output), gpu_of(o.kind, o.inputs[0])
    return load(workload) if gpu is None else load(workload, gpu)
