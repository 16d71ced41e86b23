"""Products of float16 numbers as they are stored, added to float32 sums (FMLAL): each is exact in float32.

Queries are not scaled before they are multiplied, their scores are. Weights are rounded to float16, and so is
what they are summed to. The largest is 2^15 instead of 1: float16 then holds one 2^-29 of it with all its
bits, and zero is what is below 2^-40 of it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tvm import te, tirx


RUN, LANES = 2, 4  # vectors of sums that the products of a vector go to, and their lanes
LARGEST_LOG2 = 15.0  # of a weight


def half_scores(
    QS: te.Tensor, outer: tuple[Any, ...], key: Callable[..., Any]
) -> te.Tensor:
    """Stage DOT (..., row, lane): the lanes' sums of a product of ``QS`` (batch, kv_head, row, d), as it is
    stored, and a key, ``key(*index, d)``."""
    rows, depth = QS.shape[-2:]
    dd = te.reduce_axis((0, depth // (LANES * RUN)), "dd")
    y = te.reduce_axis((0, RUN), "y")

    def product(b: Any, h: Any, sp: Any, jo: Any, ji: Any, r: Any, x: Any) -> Any:
        place = (dd * RUN + y) * LANES + x
        wide = tirx.Cast("float32", QS[b, h, r, place])
        return te.sum(key(b, h, sp, jo, ji, place) * wide, axis=[dd, y])

    return te.compute((*outer, rows, LANES), product, name="DOT")
