"""What is done to a score before the softmax: cap, bias by distance, mask; and its weight after.

A score that a query must not see is minus infinity, and its weight exactly zero.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from tvm import te, tirx

from tvm_attention.compute.binding import bound
from tvm_attention.compute.exp2 import power
from tvm_attention.compute.operand import as_float32, offset_of
from tvm_attention.compute.problem import LOG2_E, LOWEST_SCORE, Problem, float32
from tvm_attention.compute.tanh import tanh

_MASKED = float("-inf")


def modified(p: Problem, b: Any, h: Any, row: Any, key: Any, score: Any, term: Any = None) -> Any:
    """The score, in units of log2, that enters the softmax of a row.

    Softcap first, then ALiBi (Press et al., "Train Short, Test Long", 2021: minus slope times the
    distance), then the additive mask, whose ``term`` may have been computed before.
    """
    w = p.workload
    if w.softcap:
        score = p["softcap_log2"] * tanh(score / p["softcap_log2"], partial(power, p))
    if w.alibi:
        apart = row + p.bounds.offset(b) - key
        distance = tirx.Cast("float32", tirx.max(apart, -apart))  # tirx.abs goes lane by lane
        score = score - p.buffers["slopes"][b * p["query_heads"] + h] * float32(LOG2_E) * distance
    if w.mask is not None:
        score = with_mask(mask_term(p, b, h, row, key) if term is None else term, score)
    visible = p.bounds.visible(b, row, key)
    return score if visible is None else tirx.Select(visible, score, float32(_MASKED))


def hidden(p: Problem, b: Any, h: Any, row: Any, key: Any) -> Any:
    """Whether a row must not see a key."""
    visible = p.bounds.visible(b, row, key)
    unseen = tirx.const(False, "bool") if visible is None else tirx.Not(visible)
    if p.workload.mask is None:
        return unseen
    masked = mask_term(p, b, h, row, key) < float32(LOWEST_SCORE)
    return masked if visible is None else tirx.any(masked, unseen)


def weight(p: Problem, score: Any, top: Any, precision: str = "float32") -> Any:
    """2**(score - top), zero for a masked score."""
    value = power(p, score - top, precision)
    if not p.workload.masks or p.exponent == "unit":  # whose 2**-inf is zero
        return value
    return tirx.Select(score < float32(LOWEST_SCORE), float32(0.0), value)


def with_mask(term: Any, score: Any) -> Any:
    """The score with a mask's term, minus infinity where that is."""
    lowest = float32(LOWEST_SCORE)
    biased = bound(score + term, lambda x: tirx.Select(x < lowest, lowest, x))
    return tirx.Select(term < lowest, float32(_MASKED), biased)


def mask_term(p: Problem, b: Any, h: Any, row: Any, key: Any) -> Any:
    """What a mask adds to a score in units of log2, minus infinity where it masks the key."""
    w = p.workload
    assert w.mask is not None
    strides = [p[f"mask_{axis}_stride"] for axis in ("batch", "head", "row", "column")]
    # A mask of the keys alone is one element for all queries of a vector. Register tiles round up: beyond
    # the last row and key there is no mask to read.
    row = 0 if w.mask_per_key else p.clamped_row(b, row)
    index = offset_of((b, h, row, p.clamped(b, key)), strides)
    stored = p.buffers["mask"][index]
    if w.mask == "bool":
        return tirx.Select(stored.equal(tirx.const(0, "uint8")), float32(_MASKED), float32(0.0))
    bias = as_float32(stored, w.mask)
    # In units of log2 the lowest finite mask overflows: such a key is not masked, only last in line.
    lowest = float32(LOWEST_SCORE)
    scaled = bias * float32(LOG2_E)
    return tirx.Select(bias < lowest, bias, tirx.Select(scaled < lowest, lowest, scaled))


def transposed_mask(p: Problem, shape: tuple[Any, ...], place: Callable[..., Any]) -> Any:
    """Stage MT: the mask's terms with queries along the last axis, where rows of the mask are dense;
    lowering transposes their tiles in registers. ``place(*index)`` is (batch, head, row, key)."""
    if not p.workload.mask_dense:
        return None
    return te.compute(shape, lambda *index: mask_term(p, *place(*index)), name="MT")


def scored(p: Problem, ST: te.Tensor, place: Callable[..., Any]) -> te.Tensor:
    """Stage SC, the products ST as they enter the softmax, with the stage MT where there is one."""
    MT = transposed_mask(p, tuple(ST.shape), place)

    def score(*index: Any) -> Any:
        b, h, row, key = place(*index)
        return modified(p, b, h, row, key, ST[index], None if MT is None else MT[index])

    return te.compute(ST.shape, score, name="SC")
