"""The end of split-KV decoding: what the splits of a row have found, as one."""

from __future__ import annotations

from typing import Any

from tvm import te, tirx

from tvm_attention.compute.exp2 import power
from tvm_attention.compute.problem import Problem
from tvm_attention.compute.repair import Element
from tvm_attention.compute.rows import Rows
from tvm_attention.compute.splits import SplitKVTiles


def merged(
    p: Problem, tiles: SplitKVTiles, outer: Any, M: te.Tensor, L: te.Tensor, values: Element
) -> te.Tensor:
    """Stages PART (values, sum and maximum of a split), MM, W, LS, N, OS and OG: the result by the
    rows of a group, which lowering stores where they belong."""
    rows, V, columns = tiles.rows, tiles.value_lanes, p.value_dim

    def part(b: Any, h: Any, sp: Any, r: Any, x: Any) -> Any:
        ends = tirx.if_then_else(x < columns + V, L[b, h, sp, r], M[b, h, sp, r])
        value = values(b, h, sp, r, tirx.min(x, columns - 1))
        return tirx.if_then_else(x < columns, value, ends)

    # One tensor carries a split's values, sum and maximum: the single consumer its stages hang from.
    PART = te.compute((*outer, rows, columns + 2 * V), part, name="PART")
    s1, s2, s3 = (te.reduce_axis((0, p["splits"]), f"s{n}") for n in (1, 2, 3))
    heads = (p["batch"], p.kv_heads, rows)
    MM = te.compute(
        heads, lambda b, h, r: te.max(PART[b, h, s1, r, columns + V], axis=s1), name="MM"
    )
    W = te.compute(
        (*heads, p["splits"]),
        lambda b, h, r, s: power(p, PART[b, h, s, r, columns + V] - MM[b, h, r]),
        name="W",
    )
    LS = te.compute(
        heads,
        lambda b, h, r: te.sum(W[b, h, r, s2] * PART[b, h, s2, r, columns], axis=s2),
        name="LS",
    )
    OS = te.compute(
        (*heads, columns),
        lambda b, h, r, c: te.sum(W[b, h, r, s3] * PART[b, h, s3, r, c], axis=s3),
        name="OS",
    )

    def head_of(b: Any, h: Any, r: Any) -> Any:
        row = tirx.min(r, p["group"] * p["query_length"] - 1)
        return h * p["group"] + tirx.truncdiv(row, p["query_length"])

    ends = Rows(p, heads, lambda *i: MM[i], lambda *i: LS[i], head_of)
    return te.compute((*heads, columns), lambda *i: ends.finish(p, OS[i], *i[:-1]), name="OG")
