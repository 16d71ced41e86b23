"""Keys and values rearranged, or converted to float32, once for all query blocks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tvm import te, tirx

from tvm_attention.compute.problem import Problem

Element = Callable[..., Any]


def key_rows(p: Problem, pack: bool) -> Element:
    """``key(batch, kv_head, key, d)``; packed: stage KP, float32 rows."""
    if not pack:
        return p.key
    KP = te.compute(
        (p["kv_batches"], p.kv_heads, p["key_rows"], p.head_dim),
        lambda m, h, row, d: _dequantised(p, "key", m, h, row, d),
        name="KP",
    )
    return lambda b, h, key, d: KP[(*_memory(p, b, h), _row(p, b, p.clamped(b, key)), d)]


def value_columns(p: Problem, pack: bool, width: int) -> Element:
    """``value(batch, kv_head, key, column)``, the last column repeated beyond the end; packed: stage VP,
    strips of ``width`` columns, contiguous over the keys. Lowering lets the loops over keys run over those
    there are: clamping here would cost an address computation in the innermost loop."""

    def column(c: Any) -> Any:
        return tirx.min(c, p.value_dim - 1)

    if not pack:
        return lambda b, h, key, c: p.value(b, h, key, column(c))
    VP = te.compute(
        (p["kv_batches"], p.kv_heads, -(-p.value_dim // width), p["key_rows"], width),
        lambda m, h, t, row, c: _dequantised(p, "value", m, h, row, column(t * width + c)),
        name="VP",
    )

    def packed(b: Any, h: Any, key: Any, c: Any) -> Any:
        strip, place = tirx.floordiv(c, width), tirx.floormod(c, width)
        return VP[(*_memory(p, b, h), strip, _row(p, b, key), place)]

    return packed


def _dequantised(p: Problem, name: str, m: Any, h: Any, row: Any, column: Any) -> Any:
    stored = p.memory_row(name, m, h, row, column)
    scale = p.scale_of(f"{name}_scale", m, h, row)
    return stored if scale is None else stored * scale


def _memory(p: Problem, b: Any, h: Any) -> tuple[Any, Any]:
    """Packed sequences lie in one batch."""
    return (tirx.min(b, p["kv_batches"] - 1) if p.workload.ragged else b), h


def _row(p: Problem, b: Any, key: Any) -> Any:
    return p.bounds.key_start(b) + key
