"""Keys and values rearranged, or converted to float32, once for all query blocks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tvm import te, tirx

from tvm_attention.compute.operand import infinity, is_finite, magnitude
from tvm_attention.compute.problem import Problem, ceil_div, float32

Element = Callable[..., Any]
MAX_TILE = 16  # of a transposition


def key_rows(p: Problem, pack: bool) -> Element:
    """``key(batch, kv_head, key, d)``; packed: stage KP, float32 rows."""
    if not pack:
        return p.key
    KP = te.compute(
        (p["kv_batches"], p.kv_heads, p["key_rows"], p.head_dim),
        lambda m, h, row, d: _dequantised(p, "key", m, h, row, d),
        name="KP",
    )
    return lambda b, h, key, d: KP(*_memory(p, b, h), _row(p, b, p.clamped(b, key)), d)


def value_columns(p: Problem, pack: bool, width: int, only_finite: bool = False) -> Element:
    """``value(batch, kv_head, key, column)``, the last column repeated beyond the end; packed: stage VP,
    strips of ``width`` columns, contiguous over the keys. Lowering lets the loops over keys run over those
    there are: clamping here would cost an address computation in the innermost loop. ``only_finite``
    packs zero for NaN and Inf (see :func:`finite_values`)."""

    def column(c: Any) -> Any:
        return tirx.min(c, p.value_dim - 1)

    if not pack:
        return lambda b, h, key, c: p.value(b, h, key, column(c))

    def packed_value(m: Any, h: Any, t: Any, row: Any, c: Any) -> Any:
        number = _dequantised(p, "value", m, h, row, column(t * width + c))
        return tirx.Select(is_finite(number), number, float32(0.0)) if only_finite else number

    VP = te.compute(
        (p["kv_batches"], p.kv_heads, -(-p.value_dim // width), p["key_rows"], width),
        packed_value,
        name="VP",
    )

    def packed(b: Any, h: Any, key: Any, c: Any) -> Any:
        strip, place = tirx.floordiv(c, width), tirx.floormod(c, width)
        return VP(*_memory(p, b, h), strip, _row(p, b, key), place)

    return packed


def finite_values(p: Problem, keys: int) -> tuple[te.Tensor, Element]:
    """What packing only finite values left out: stages VL (largest magnitudes, as integers) and VB (batch,
    kv_head, block of ``keys`` keys), above zero where it was anything; and ``left_out(batch, kv_head, key,
    column)``, that value or zero."""

    def left_out(b: Any, h: Any, key: Any, c: Any) -> Any:
        number = p.value(b, h, p.clamped(b, key), c)
        return tirx.Select(is_finite(number), float32(0.0), number)

    raw = p.workload.kv_dtype is None  # quantised values have their scale first
    dtype = p.workload.dtype if raw else "float32"
    most = MAX_TILE if dtype == "float32" else 2 * MAX_TILE
    lanes = min(p.value_dim & -p.value_dim, most)  # that divide a row
    j, c = te.reduce_axis((0, keys), "jb"), te.reduce_axis((0, p.value_dim // lanes), "cb")
    x = te.reduce_axis((0, lanes), "xb")
    shape = (p["batch"], p.kv_heads, ceil_div(p["key_length"], keys))
    infinite = infinity(dtype)

    def largest(b: Any, h: Any, kb: Any, lane: Any) -> Any:
        key = kb * keys + j
        value = p.value(b, h, p.clamped(b, key), c * lanes + lane, raw)
        bits = magnitude(value, dtype)
        if p.workload.ragged:  # an element without any key has none to repeat
            bits = tirx.if_then_else(key < p.bounds.keys(b), bits, tirx.const(0, infinite.ty.dtype))
        return te.max(bits, axis=[j, c])

    VL = te.compute((*shape, lanes), largest, name="VL")

    def spoilt(b: Any, h: Any, kb: Any) -> Any:
        any_bad = tirx.Select(VL[b, h, kb, x] < infinite, float32(0.0), float32(1.0))
        return te.max(any_bad, axis=x)

    VB = te.compute(shape, spoilt, name="VB")
    return VB, left_out


def scale_row(p: Problem, sign_only: bool = False) -> Element:
    """``scale(d)``: stage SCALE, the scale (or 1 with its sign) once for every column of a transposition's
    tile, which multiplies by a row of factors."""
    scale, one = p["scale_log2"], float32(1.0)
    factor = tirx.Select(scale < float32(0.0), -one, one) if sign_only else scale
    SCALE = te.compute((MAX_TILE,), lambda _: factor, name="SCALE")
    return lambda d: SCALE[tirx.floormod(d, MAX_TILE)]


def unit_row() -> Element:
    """The same of ones: stage ONES, for what is transposed and not scaled."""
    ONES = te.compute((MAX_TILE,), lambda _: float32(1.0), name="ONES")
    return lambda d: ONES[tirx.floormod(d, MAX_TILE)]


def _dequantised(p: Problem, name: str, m: Any, h: Any, row: Any, column: Any) -> Any:
    stored = p.memory_row(name, m, h, row, column)
    scale = p.scale_of(f"{name}_scale", m, h, row)
    return stored if scale is None else stored * scale


def _memory(p: Problem, b: Any, h: Any) -> tuple[Any, Any]:
    """Packed sequences lie in one batch."""
    return (tirx.min(b, p["kv_batches"] - 1) if p.workload.ragged else b), h


def _row(p: Problem, b: Any, key: Any) -> Any:
    return p.bounds.key_start(b) + key
