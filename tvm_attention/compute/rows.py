"""The end of a row: its normaliser, with the sink's share, and its log-sum-exp."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from tvm import te, tirx

from tvm_attention.compute.exp2 import power
from tvm_attention.compute.problem import LOG2_E, LOWEST_SCORE, Problem, float32

Element = Callable[..., Any]


class Rows:
    """Stages N (what a row's weighted values are multiplied with) and, where it is asked for, LSE.

    ``shape`` is that of the rows, whose maxima and sums ``top`` and ``total`` read at an index;
    ``head`` says which query head an index belongs to.
    """

    def __init__(
        self, p: Problem, shape: tuple[Any, ...], top: Element, total: Element, head: Element
    ) -> None:
        def ends(index: tuple[Any, ...]) -> tuple[Any, Any, Any]:
            """Maximum, factor on sums relative to it, and sum of the row, all with the sink."""
            m, s = top(*index), total(*index)
            if not p.workload.sinks:
                return m, float32(1.0), s
            sink = p.buffers["sinks"][head(*index)] * float32(LOG2_E)
            peak = tirx.max(m, sink)
            factor = power(p, m - peak)
            # A sink of minus infinity is none: a row that sees nothing then has no share at all.
            share = tirx.Select(sink < float32(LOWEST_SCORE), float32(0.0), power(p, sink - peak))
            return peak, factor, s * factor + share

        def factor_of(*index: Any) -> Any:
            _, factor, s = ends(index)
            return normaliser(p, s, factor)

        def log_sum_exp(*index: Any) -> Any:
            m, _, s = ends(index)
            # Masks of the lowest number overflow in units of log2, and are clamped there.
            lowest = m <= float32(LOWEST_SCORE)
            top = tirx.Select(lowest, float32(LOWEST_SCORE), m * float32(math.log(2)))
            lse = top + tirx.log(s)
            return tirx.Select(s.equal(float32(0.0)), float32(float("-inf")), lse)

        self.normaliser = te.compute(shape, factor_of, name="N")
        self._lse = None
        if p.workload.output == "attention_and_lse":
            self._lse = te.compute(shape, log_sum_exp, name="LSE")

    def finish(self, p: Problem, weighted: Any, *index: Any) -> Any:
        """An output element from the weighted values of the row at ``index``."""
        value = weighted * self.normaliser[index]
        if self._lse is not None:
            # The row's result hangs from its log-sum-exp: lowering stores that beside it.
            empty = self._lse[index].equal(float32(float("-inf")))
            value = tirx.Select(empty, float32(0.0), value)
        return p.result(value)


def normaliser(p: Problem, total: Any, factor: Any) -> Any:
    """factor / total; zero for a row that sees no key at all, where there may be one."""
    n = factor / total
    if not (p.workload.masks or p.workload.ragged):
        return n
    return tirx.Select(total.equal(float32(0.0)), float32(0.0), n)
