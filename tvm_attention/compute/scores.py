"""What is done to a score before the softmax: cap, bias by distance, mask; and its weight after.

A score that a query must not see is minus infinity, and its weight exactly zero.
"""

from __future__ import annotations

from typing import Any

from tvm import tirx

from tvm_attention.compute.exp2 import exp2
from tvm_attention.compute.operand import as_float32, offset_of
from tvm_attention.compute.problem import LOG2_E, LOWEST_SCORE, Problem, float32
from tvm_attention.compute.tanh import tanh

_MASKED = float("-inf")


def modified(p: Problem, b: Any, h: Any, row: Any, key: Any, score: Any) -> Any:
    """The score, in units of log2, that enters the softmax of a row.

    Softcap first, then ALiBi (Press et al., "Train Short, Test Long", 2021: minus slope times the
    distance), then the additive mask.
    """
    w = p.workload
    if w.softcap:
        score = p["softcap_log2"] * tanh(score / p["softcap_log2"])
    if w.alibi:
        apart = row + p.bounds.offset(b) - key
        distance = tirx.Cast("float32", tirx.max(apart, -apart))  # tirx.abs goes lane by lane
        score = score - p.buffers["slopes"][b * p["query_heads"] + h] * float32(LOG2_E) * distance
    if w.mask is not None:
        score = _with_mask(p, b, h, row, key, score)
    visible = p.bounds.visible(b, row, key)
    return score if visible is None else tirx.Select(visible, score, float32(_MASKED))


def weight(p: Problem, score: Any, top: Any) -> Any:
    """2**(score - top), zero for a masked score."""
    value = exp2(score - top)
    if not p.workload.masks:
        return value
    return tirx.Select(score < float32(LOWEST_SCORE), float32(0.0), value)


def _with_mask(p: Problem, b: Any, h: Any, row: Any, key: Any, score: Any) -> Any:
    w = p.workload
    assert w.mask is not None
    strides = [p[f"mask_{axis}_stride"] for axis in ("batch", "head", "row", "column")]
    # A mask of the keys alone is one element for all queries of a vector. Register tiles round up: beyond
    # the last row and key there is no mask to read.
    row = 0 if w.mask_per_key else p.clamped_row(b, row)
    index = offset_of((b, h, row, p.clamped(b, key)), strides)
    stored = p.buffers["mask"][index]
    if w.mask == "bool":
        return tirx.Select(stored.equal(tirx.const(0, "uint8")), float32(_MASKED), score)
    bias = as_float32(stored, w.mask)
    biased = score + bias * float32(LOG2_E)
    # In units of log2 the lowest finite mask overflows: such a key is not masked, only last in line.
    biased = tirx.Select(biased < float32(LOWEST_SCORE), float32(LOWEST_SCORE), biased)
    return tirx.Select(bias < float32(LOWEST_SCORE), float32(_MASKED), biased)
