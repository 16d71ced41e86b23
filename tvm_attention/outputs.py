"""The array a caller gives for the result: checked before anything is written to it."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from tvm_attention.arguments import RAGGED_FIELDS
from tvm_attention.arrays import ArrayKind, Shape, is_dense, memory_range
from tvm_attention.call import Call
from tvm_attention.cuda.numbers import Numbers
from tvm_attention.errors import InvalidTypeError, InvalidValueError


def opened_out(
    kind: ArrayKind, out: Any, expected: Shape, inputs: tuple[Any, ...], mask: Any = None
) -> Any:
    """``out`` as the kind reads it: of the expected shape and the query's dtype, writable, with a dense
    last axis and memory of its own, apart from the inputs (query, key, value) and a mask.

    Raises InvalidValueError or InvalidTypeError otherwise.
    """
    out = kind.opened("out", out)
    shape, strides = kind.shape(out), kind.strides(out)
    if shape != expected:
        raise InvalidValueError(f"out: expected shape {expected}, got {shape}")
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
    start, end = memory_range(kind, out)
    read = dict(zip(("query", "key", "value"), inputs, strict=True))
    if mask is not None:
        read["mask"] = mask
    for name, array in read.items():
        first, last = memory_range(kind, array)
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


def no_keys(kind: ArrayKind, call: Call, out: Any, lse: Any) -> None:
    """Results where there is nothing to compute: of rows, if any, that may attend to nothing."""
    out[...] = 0.0
    if lse is None:
        return
    lse[...] = -math.inf
    if call.options.sinks is None:
        return
    if not isinstance(call.options.sinks, np.ndarray):  # on a GPU, for which nobody waits
        sinks = call.options.sinks
        if isinstance(sinks, Numbers):
            Numbers(lse, "float32")[...] = sinks[:1] if len(kind.shape(lse)) < 3 else sinks[:, None]
            return
        lse[...] = sinks[0] if len(kind.shape(lse)) < 3 else sinks[:, None]
        return
    sinks = call.options.sinks.tolist()
    if len(kind.shape(lse)) < 3:
        lse[...] = sinks[0]
        return
    for head, sink in enumerate(sinks):
        lse[:, head] = sink


def no_queries(call: Call, out: Any, lse: Any) -> None:
    """Zeros, and minus infinity as log-sum-exp, in rows (batch, heads, rows) beyond the queries of a batch
    element, which kernels leave alone."""
    if call.ragged is None or call.all_queries:
        return
    queries = call.ragged[:, RAGGED_FIELDS.index("queries")]
    if isinstance(queries, Numbers):
        queries.fill_beyond(out, 0.0)
        if lse is not None:
            queries.fill_beyond(lse, -math.inf)
        return
    if not isinstance(queries, np.ndarray):  # on a GPU, for which nobody waits
        rows = queries.new_ones(call.sizes.query_length).cumsum(0)
        beyond = rows[None] > queries[:, None]
        out.masked_fill_(beyond[:, None, :, None], 0.0)
        if lse is not None:
            lse.masked_fill_(beyond[:, None], -math.inf)
        return
    for b in np.flatnonzero(queries < call.sizes.query_length).tolist():
        out[b, :, int(queries[b]) :] = 0.0
        if lse is not None:
            lse[b, :, int(queries[b]) :] = -math.inf
