"""The expressions: every variant against float64, at lengths around every tile size."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from attention_cases import (
    LAYOUTS,
    Guarded,
    allowed_error,
    assert_right,
    inputs,
    kernel_of,
    lengths_around,
    poisoned,
    runnable_levels,
)
from attention_variants import (
    MATRIX,
    PREFILL,
    SCHEDULES,
    VARIANTS,
    attend,
    check_legal,
    decode_candidate,
    lanes_of,
    prefill_candidate,
    tensors,
)

from tvm_attention.schedules import Candidate
from tvm_attention.target import detect_target
from tvm_attention.workload import AttentionWorkload

CAUSAL = (None, "top_left", "bottom_right")


@pytest.mark.parametrize("causal", CAUSAL)
@pytest.mark.parametrize("name", PREFILL)
def test_prefill_at_lengths_around_every_tile(name: str, causal: str | None) -> None:
    target = detect_target()
    lanes = lanes_of(target)
    candidate = prefill_candidate(name, lanes, 64)
    workload = AttentionWorkload(head_dim=48, value_dim=64, causal=causal, key_length=300)
    check_legal(workload, target, candidate)
    kernel = kernel_of(workload, candidate, target, threads=1)
    queries = lengths_around({lanes, 2 * lanes, 4 * lanes}, 4 * lanes + 1)
    keys = lengths_around({6, 2 * lanes, 96, 192}, 193)
    for n, (rows, columns) in enumerate(product(queries, keys)):
        case = AttentionWorkload(
            head_dim=48, value_dim=64, causal=causal, batch=1 + n % 2, query_heads=(2, 6)[n % 3 % 2],
            kv_heads=2, query_length=rows, key_length=columns,
        )  # fmt: skip
        layout = LAYOUTS[n % len(LAYOUTS)]
        q, k, v = inputs(case, layout, seed=n)
        out = Guarded((case.batch, case.query_heads, rows, 64))
        kernel(q, k, v, out.array)
        assert_right(out.array, q, k, v, causal=causal, what=f"{rows}x{columns} {layout}")
        out.assert_untouched_outside()


@pytest.mark.parametrize("causal", [None, "bottom_right"])
@pytest.mark.parametrize(
    ("name", "vectors"),
    [("running", 2), ("row_block keys", 4), ("blocks_and_merge", 4), ("streaming", 4)],
)
def test_blocks_of_one_and_of_two_register_tiles(
    name: str, vectors: int, causal: str | None
) -> None:
    """Rows may end in each: a strip then runs over fewer vectors, a block over fewer tiles."""
    target = detect_target()
    lanes = lanes_of(target)
    candidate = prefill_candidate(name, lanes, 64).replace(query_block=vectors * lanes)
    workload = AttentionWorkload(head_dim=48, value_dim=64, causal=causal, key_length=300)
    check_legal(workload, target, candidate)
    kernel = kernel_of(workload, candidate, target, threads=1)
    for rows in lengths_around({lanes, 2 * lanes, 3 * lanes, 4 * lanes}, 4 * lanes + 1):
        q, k, v = inputs(workload.with_lengths(rows, 131), seed=rows)
        out = Guarded((1, 8, rows, 64))
        kernel(q, k, v, out.array)
        assert_right(out.array, q, k, v, causal=causal, what=f"{rows} rows")
        out.assert_untouched_outside()


@pytest.mark.parametrize("level", runnable_levels())
@pytest.mark.parametrize("name", [n for n in PREFILL if n not in MATRIX])
def test_prefill_at_every_instruction_set_level(name: str, level: str) -> None:
    target = detect_target(level)
    candidate = prefill_candidate(name, lanes_of(target), 64)
    case = AttentionWorkload(
        head_dim=40, value_dim=64, causal="bottom_right", query_heads=4, kv_heads=2,
        query_length=37, key_length=131,
    )  # fmt: skip
    check_legal(case, target, candidate)
    q, k, v = inputs(case, "heads inside")
    out = poisoned((1, 4, 37, 64))
    kernel_of(case, candidate, target)(q, k, v, out)
    assert_right(out, q, k, v, causal="bottom_right")


@pytest.mark.parametrize("name", [n for n in PREFILL if n != "row_block values"])
@pytest.mark.parametrize("dims", [(1, 1), (3, 5), (129, 70)])
def test_prefill_at_head_dimensions_off_every_vector(name: str, dims: tuple[int, int]) -> None:
    target = detect_target()
    tile = prefill_candidate(name, lanes_of(target), dims[1])
    if name not in MATRIX and dims[1] < tile["value_rows"]:
        tile = tile.replace(value_rows=dims[1], value_vectors=2)
    case = AttentionWorkload(
        head_dim=dims[0], value_dim=dims[1], causal="top_left", query_heads=2, query_length=35,
        key_length=100,
    )  # fmt: skip
    q, k, v = inputs(case, "padded rows")
    out = Guarded((1, 2, 35, dims[1]))
    kernel_of(case, tile, target)(q, k, v, out.array)
    assert_right(out.array, q, k, v, causal="top_left")
    out.assert_untouched_outside()


FOLDED = {
    1: [(1, 1)],
    2: [(2, 1), (1, 2)],
    4: [(4, 1), (3, 1), (2, 2)],
    8: [(8, 1), (5, 1), (2, 3)],
}


def decode_case(group: int, queries: int, keys: int, causal: str | None) -> AttentionWorkload:
    return AttentionWorkload(
        head_dim=48, value_dim=64, causal=causal, batch=2, query_heads=3 * group, kv_heads=3,
        query_length=queries, key_length=keys,
    )  # fmt: skip


@pytest.mark.parametrize("causal", CAUSAL)
@pytest.mark.parametrize("rows", sorted(FOLDED))
def test_decode_at_lengths_around_every_tile(rows: int, causal: str | None) -> None:
    target = detect_target()
    lanes = lanes_of(target)
    for n, keys in enumerate(lengths_around({2, lanes, 2 * lanes, 128, 256, 2048}, 2049)):
        group, queries = FOLDED[rows][n % len(FOLDED[rows])]
        case = decode_case(group, queries, keys, causal)
        check_legal(case, target, decode_candidate(rows))
        kernel = kernel_of(case, decode_candidate(rows), target, threads=1 + n % 3)
        layout = LAYOUTS[n % len(LAYOUTS)]
        q, k, v = inputs(case, layout, seed=n)
        out = Guarded((2, 3 * group, queries, 64))
        kernel(q, k, v, out.array)
        assert_right(out.array, q, k, v, causal=causal, what=f"{group} {queries}x{keys} {layout}")
        out.assert_untouched_outside()


@pytest.mark.parametrize("level", runnable_levels())
@pytest.mark.parametrize("rows", [1, 4])
def test_decode_at_every_instruction_set_level(rows: int, level: str) -> None:
    target = detect_target(level)
    case = decode_case(*FOLDED[rows][-1], 333, "bottom_right")
    check_legal(case, target, decode_candidate(rows))
    q, k, v = inputs(case, "heads inside")
    out = poisoned((*q.shape[:3], 64))
    kernel_of(case, decode_candidate(rows), target)(q, k, v, out)
    assert_right(out, q, k, v, causal="bottom_right")


def edge_case(name: str, causal: str | None) -> tuple[AttentionWorkload, Candidate]:
    """Two heads, 4 queries and 131 keys for a variant."""
    case = AttentionWorkload(
        head_dim=48, value_dim=64, causal=causal, query_heads=2, query_length=4, key_length=131
    )
    if name == "split_kv":
        return case, decode_candidate(4)
    return case, prefill_candidate(name, lanes_of(detect_target()), 64)


@pytest.mark.parametrize("name", VARIANTS)
def test_rows_that_may_attend_to_nothing_give_zeros(name: str) -> None:
    case, candidate = edge_case(name, "bottom_right")
    kernel = kernel_of(case, candidate)
    for keys in (1, 2, 3):
        q, k, v = inputs(case.with_lengths(4, keys))
        out = poisoned((1, 2, 4, 64))
        kernel(q, k, v, out)
        assert not out[:, :, : 4 - keys].any()
        assert_right(out, q, k, v, causal="bottom_right")


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("name", [n for n in SCHEDULES if n != "weights"])
def test_halves_are_rounded_to_even(name: str, dtype: str) -> None:
    """Means of two neighbouring numbers lie half-way between them; sums and weights are exact."""
    q, k, v = tensors(name, keys=2, dtype=dtype)
    q[...] = 0
    unit = 2.0**-7 if dtype == "bfloat16" else 2.0**-10
    lower = 1.0 + unit * np.arange(v.shape[-1])
    v[:, :, 0], v[:, :, 1] = lower, lower + unit
    v[:, 1] *= -1
    found, _ = attend(name, q, k, v)
    even = lower + unit * (np.arange(v.shape[-1]) % 2)
    sign = np.repeat([1.0, -1.0], q.shape[1] // 2)[:, None, None]
    np.testing.assert_array_equal(
        found.astype(np.float64), np.broadcast_to(sign * even, found.shape)
    )


@pytest.mark.parametrize("size", [1e4, -1e4, 1e18, -1e18])
@pytest.mark.parametrize("name", VARIANTS)
def test_huge_scores(name: str, size: float) -> None:
    """Rows whose largest score is far above, and the others far below, what exp can represent."""
    case, candidate = edge_case(name, None)
    q, k, v = inputs(case)
    q[...], k[...] = 1.0, 0.0
    k[..., 0] = np.linspace(-abs(size), size, 131, dtype=np.float32)
    k[..., 77, 0] = 1.5 * abs(size)
    out = poisoned((1, 2, 4, 64))
    kernel_of(case, candidate)(q, k, v, out)
    np.testing.assert_array_equal(out, np.broadcast_to(v[:, :, 77:78], out.shape))


def spoil_a_query(name: str, causal: str | None, bits: int) -> None:
    case, candidate = edge_case(name, causal)
    q, k, v = inputs(case)
    kernel = kernel_of(case, candidate)
    whole, out = poisoned((1, 2, 4, 64)), poisoned((1, 2, 4, 64))
    kernel(q, k, v, whole)
    q[0, 1, 2, 5] = np.array(bits, np.uint32).view(np.float32)
    out[0, 1, 2] = 0.0
    kernel(q, k, v, out)
    assert np.isnan(out[0, 1, 2]).all()
    out[0, 1, 2] = whole[0, 1, 2]
    np.testing.assert_array_equal(out, whole)


@pytest.mark.parametrize("causal", [None, "bottom_right"])
@pytest.mark.parametrize("name", VARIANTS)
def test_a_nan_in_a_query_spoils_its_row_alone(name: str, causal: str | None) -> None:
    for bits in (0x7FC00000, 0xFFC00000, 0x7FC00001, 0x7F800001, 0xFFFFFFFF):
        spoil_a_query(name, causal, bits)


@pytest.mark.parametrize("operand", ["key", "value"])
@pytest.mark.parametrize("name", VARIANTS)
def test_a_nan_in_a_key_or_value_reaches_the_rows_that_see_it(name: str, operand: str) -> None:
    case, candidate = edge_case(name, "bottom_right")
    q, k, v = inputs(case)
    (k if operand == "key" else v)[0, 1, 20, :] = np.nan
    out = np.zeros((1, 2, 4, 64), np.float32)
    kernel_of(case, candidate)(q, k, v, out)
    assert np.isnan(out[0, 1]).all()
    assert_right(out[:, :1], q[:, :1], k[:, :1], v[:, :1], causal="bottom_right")


@pytest.mark.parametrize("operand", ["key", "value"])
@pytest.mark.parametrize("name", VARIANTS)
def test_what_lies_in_the_future_does_not_matter(name: str, operand: str) -> None:
    case, candidate = edge_case(name, "bottom_right")
    kernel = kernel_of(case, candidate)
    q, k, v = inputs(case)
    whole = poisoned((1, 2, 4, 64))
    kernel(q, k, v, whole)
    assert_right(whole, q, k, v, causal="bottom_right")
    for bad in (np.nan, np.inf, -np.inf):
        spoiled, out = (k if operand == "key" else v).copy(), poisoned((1, 2, 4, 64))
        spoiled[..., -1, :] = bad  # seen by the last query alone
        kernel(q, *((spoiled, v) if operand == "key" else (k, spoiled)), out)
        # A sum with a NaN is made again, in another order.
        limit = allowed_error(v)
        np.testing.assert_allclose(out[:, :, :3], whole[:, :, :3], rtol=0, atol=limit)
