"""Tasks of several strips, cut into parts by how many there are and how many threads."""

from __future__ import annotations

import numpy as np
import pytest
from attention_variants import MATRIX, attend, check, tensors
from tvm import tirx
from tvm.sym import Analyzer

from tvm_attention.lowering.parts import cut

STRIPED = ("running", *MATRIX)


def chosen(queries: int, threads: int, heads: int = 1, strips: int = 16) -> tuple[int, int]:
    """(parts, strips of one) of tasks of so many strips of 32 rows."""
    names = ("batch", "query_heads", "query_length", "threads")
    symbols = {name: tirx.Var(name, "int32") for name in names}
    rows, head, batch = (tirx.Var(name, "int32") for name in ("qb", "h", "b"))
    notes = {"query_block": 32 * strips, "task_strips": strips}
    loop = tirx.For(rows, 0, 4, tirx.ForKind.SERIAL, tirx.Evaluate(0), None, notes)
    loop = tirx.For(head, 0, 4, tirx.ForKind.SERIAL, loop)
    loop = tirx.For(batch, 0, 4, tirx.ForKind.SERIAL, loop, None, {"task": 3})
    _, parts = cut(loop, symbols)
    assert parts is not None
    call = {"batch": 1, "query_heads": heads, "query_length": queries, "threads": threads}
    analyzer = Analyzer()
    for name, value in call.items():
        analyzer.bind(symbols[name], tirx.const(value, "int32"))
    count = int(analyzer.simplify(parts.count_value))
    analyzer.bind(parts.count, tirx.const(count, "int32"))
    return count, int(analyzer.simplify(parts.strips_value))


@pytest.mark.parametrize(
    ("queries", "threads", "heads", "expected"),
    [
        (512, 1, 1, (1, 16)),
        (512, 2, 1, (2, 8)),  # both threads, at the cost of packing twice
        (512, 2, 2, (1, 16)),  # they are busy anyway
        (512, 2, 12, (1, 16)),
        (512, 2, 3, (2, 8)),  # else one would do two tasks, one one
        (512, 64, 12, (4, 4)),
        (32, 64, 1, (1, 1)),  # a strip is not cut
        (100, 8, 1, (4, 1)),
        (4096, 2, 1, (1, 16)),
    ],
)
def test_parts(queries: int, threads: int, heads: int, expected: tuple[int, int]) -> None:
    assert chosen(queries, threads, heads) == expected


@pytest.mark.parametrize("rows", [1, 37, 130, 300])
@pytest.mark.parametrize("causal", [None, "top_left"])
@pytest.mark.parametrize("name", STRIPED)
def test_every_number_of_threads_gives_the_same(name: str, causal: str | None, rows: int) -> None:
    q, k, v = tensors(name, rows=rows, batch=1)
    options = {"causal": causal}
    out, lse = check(name, q, k, v, **options)
    for threads in (2, 3, 5, 16):
        found, sums = attend(name, q, k, v, threads, **options)
        np.testing.assert_array_equal(found, out)
        np.testing.assert_array_equal(sums, lse)
