"""CUDA kernels against float64, run on the CPU from their CUDA source."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest
from attention_bounds import assert_near
from attention_cases import LAYOUTS, Guarded, laid_out
from attention_variants import bounds
from cuda_on_cpu import ORDERS, StandInArrays, kernel_on_cpu
from numpy.typing import NDArray

from tvm_attention import reference
from tvm_attention.accuracy import ROUNDING
from tvm_attention.call import Call
from tvm_attention.operands import geometry
from tvm_attention.options import opened_options
from tvm_attention.random_calls import random_inputs
from tvm_attention.schedules import Candidate, cuda
from tvm_attention.target import named_target
from tvm_attention.workload import AttentionWorkload

Array = NDArray[Any]
KIND = StandInArrays()
MACHINE = cuda.machine_parameters(named_target("cuda-sm_80"))
# Small, so that short lengths cross all edges: blocks of 8 queries and 16 keys.
SMALL = {
    "row_threads": 4, "column_threads": 8, "rows": 2, "keys": 2, "score_steps": 4, "value_steps": 4,
    "vector": 4, "overlap": 0,
}  # fmt: skip
FUSED = Candidate.of("fused", SMALL)

SPLIT_KV = Candidate.of(
    "fused_split_kv", SMALL | {"row_threads": 2, "column_threads": 16, "rows": 2, "keys": 1}
)

TENSOR = Candidate.of(
    "fused_tensor",
    {"row_threads": 8, "column_threads": 4, "rows": 2, "keys": 4, "vector": 4, "overlap": 0},
)


def attend(
    candidate: Candidate, q: Array, k: Array, v: Array, order: int = 0, **options: Any
) -> tuple[Array, Array]:
    """(result, log-sum-exp) of a candidate."""
    sizes = geometry(q.shape, k.shape, v.shape, enable_gqa=True)
    dtype = KIND.dtype(q)
    call = Call.of(sizes, opened_options(KIND, sizes, query_dtype=dtype, **options), dtype)
    workload = call.workload("attention_and_lse")
    assert cuda.design_space(workload, MACHINE).refusal(candidate) is None
    out = Guarded((*q.shape[:3], v.shape[3]), dtype=q.dtype)
    lse = Guarded(q.shape[:3])
    kernel_on_cpu(workload, candidate, order).compute(KIND, call, (q, k, v), out.array, lse.array)
    out.assert_untouched_outside()
    lse.assert_untouched_outside()
    return out.array, lse.array


def check(
    candidate: Candidate, q: Array, k: Array, v: Array, order: int = 0, **options: Any
) -> None:
    found, sums = attend(candidate, q, k, v, order, **options)
    expected = reference.attended(q, k, v, **options)
    size, span = bounds(q, k, v, **options)
    what = f"{candidate} {q.shape} {k.shape} {options}"
    rounded = size
    if (
        candidate.variant == "fused_tensor"
    ):  # weights are rounded to the dtype: so many roundings more
        rounded += {"float16": 2.0**-11, "bfloat16": 2.0**-8}[str(q.dtype)] / ROUNDING
    assert_near(found, expected.out, str(q.dtype), span=span, size=rounded, what=what)
    assert_near(sums, expected.lse, "float32", span=1.0, size=size, what=f"lse {what}")


def tensors(
    rows: int, keys: int, dims: tuple[int, int] = (24, 16), dtype: str = "float32", group: int = 2
) -> tuple[Array, Array, Array]:
    w = AttentionWorkload(
        head_dim=dims[0], value_dim=dims[1], dtype=dtype, batch=2, kv_heads=2, query_heads=2 * group,
        query_length=rows, key_length=keys,
    )  # fmt: skip
    return random_inputs(w, rows + keys)


@pytest.mark.parametrize("causal", [None, "top_left", "bottom_right"])
def test_lengths_around_every_tile(causal: str | None) -> None:
    for n, (rows, keys) in enumerate(product((1, 7, 8, 9, 17), (1, 15, 16, 17, 33))):
        q, k, v = (laid_out(x, LAYOUTS[n % len(LAYOUTS)]) for x in tensors(rows, keys))
        check(FUSED, q, k, v, ORDERS[n % 3], causal=causal)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_sixteen_bits(dtype: str, order: int) -> None:
    check(FUSED, *tensors(19, 37, dtype=dtype), order)


def test_rows_of_no_whole_vectors_are_copied_beside_computing() -> None:
    check(FUSED.replace(overlap=1, vector=1, score_steps=2), *tensors(9, 37, dims=(10, 6)), 2)


MASKS = ("bool", "float32", "per key", "columns")


def mask_of(kind: str, rows: int, keys: int, rng: np.random.Generator) -> Array:
    seen = rng.random((2, 4, rows, keys)) < 0.6
    seen[:, :, rows // 2] = False  # a row that sees nothing
    if kind == "per key":
        return seen[:, :1, :1]
    if kind == "columns":  # whose rows, not keys, are adjacent
        return np.ascontiguousarray(seen.swapaxes(2, 3)).swapaxes(2, 3)
    bias = rng.standard_normal(seen.shape).astype("float32")
    return seen if kind == "bool" else np.where(seen, bias, -np.inf).astype("float32")


@pytest.mark.parametrize("kind", MASKS)
def test_masks(kind: str) -> None:
    q, k, v = tensors(19, 37)
    check(FUSED, q, k, v, mask=mask_of(kind, 19, 37, np.random.default_rng(1)))


@pytest.mark.parametrize("window", [(3, 2), (0, 0), (40, 1), (-1, 4)])
def test_windows(window: tuple[int, int]) -> None:
    check(FUSED, *tensors(35, 50), window=window)
    check(FUSED, *tensors(50, 35), window=window)


def test_many_options_at_once() -> None:
    rng = np.random.default_rng(2)
    q, k, v = tensors(21, 45, dtype="float16")
    check(
        FUSED, q, k, v, order=2, mask=mask_of("float32", 21, 45, rng).astype("float16"), window=(30, 30),
        softcap=3.0, alibi_slopes=rng.random(4).astype("float32"), sinks=rng.standard_normal(4),
        kv_lengths=np.array([31, 0], np.int32), scale=0.3,
    )  # fmt: skip


@pytest.mark.parametrize("name", ["fused", "fused_split_kv", "fused_tensor"])
def test_masked_values_that_are_no_numbers_stay_out(name: str) -> None:
    rng = np.random.default_rng(3)
    candidate = next(c for c in (FUSED, SPLIT_KV, TENSOR) if c.variant == name)
    rows = 4 if name == "fused_split_kv" else 19
    group = 1 if name == "fused_split_kv" else 2
    dtype = "float16" if name == "fused_tensor" else "float32"
    q, k, v = tensors(rows, 37, dims=(16, 16), dtype=dtype, group=group)
    bad = rng.random(v.shape[2]) < 0.2
    seen = np.broadcast_to(~bad, (2, 2 * group, rows, 37)).copy()
    seen[:, :, 1] = True  # one row sees them
    spoilt = v.copy()
    numbers = np.array([np.nan, np.inf, -np.inf])[rng.integers(3, size=bad.sum())]
    spoilt[:, :, bad] = numbers[:, None].astype(v.dtype)
    found, _ = attend(candidate, q, k, spoilt, mask=seen)
    expected, _ = attend(candidate, q, k, v, mask=seen)
    others = np.arange(rows) != 1
    np.testing.assert_array_equal(found[:, :, others], expected[:, :, others])
    assert not np.isfinite(found[:, :, 1]).any()


@pytest.mark.parametrize("dims", [(1, 1), (3, 5), (40, 40), (64, 80), (24, 256)])
def test_head_dimensions(dims: tuple[int, int]) -> None:
    vector = int(np.gcd.reduce([*dims, 4]))
    candidate = FUSED.replace(vector=vector, score_steps=int(np.gcd(dims[0], 4)))
    check(candidate, *tensors(11, 21, dims=dims), order=1)


DEFAULTS = [
    ("float32", 64, "fused"), ("bfloat16", 128, "fused_tensor"), ("float16", 64, "fused_tensor"),
    ("float16", 40, "fused"),
]  # fmt: skip


@pytest.mark.parametrize(("dtype", "dim", "variant"), DEFAULTS)
def test_default_candidates(dtype: str, dim: int, variant: str) -> None:
    w = AttentionWorkload(head_dim=dim, dtype=dtype, causal=True)
    candidate = cuda.default_candidate(w, MACHINE)
    assert candidate.variant == variant
    q, k, v = tensors(77, 100, dims=(dim, dim), dtype=dtype)
    check(candidate, q[:1], k[:1], v[:1], causal="bottom_right")


def test_tensors_that_do_not_suit_vectors() -> None:
    q, k, v = tensors(9, 18)
    wide = np.full((2, 2, 18, 25), np.nan, "float32")
    wide[..., 1:] = k
    check(FUSED, q, wide[..., 1:], v)


def test_steps_and_tiles() -> None:
    for change in (
        {"rows": 1, "keys": 4},
        {"row_threads": 8, "column_threads": 16, "rows": 4},
        {"value_steps": 8, "score_steps": 1},
    ):
        check(FUSED.replace(**change), *tensors(19, 37), causal="top_left")


@pytest.mark.parametrize("keys", [1, 15, 16, 17, 100])
def test_decoding(keys: int) -> None:
    for n, (rows, causal) in enumerate(product((3, 4), (None, "bottom_right"))):
        check(SPLIT_KV, *tensors(rows, keys, group=1), ORDERS[n % 3], causal=causal)
    check(SPLIT_KV, *tensors(2, keys, group=2), window=(10, 3))


def test_decoding_with_many_options() -> None:
    rng = np.random.default_rng(4)
    q, k, v = tensors(2, 45, dtype="float16")
    seen = rng.random((2, 4, 2, 45)) < 0.7
    check(
        SPLIT_KV, q, k, v, mask=seen, softcap=3.0, alibi_slopes=rng.random(4).astype("float32"),
        sinks=rng.standard_normal(4), kv_lengths=np.array([31, 0], np.int32), causal="bottom_right",
    )  # fmt: skip


@pytest.mark.parametrize("group", [1, 2, 8])
def test_default_candidates_for_decoding(group: int) -> None:
    w = AttentionWorkload(head_dim=128, query_heads=2 * group, kv_heads=2, query_length=1)
    candidate = cuda.default_candidate(w, MACHINE)
    assert candidate.variant == "fused_split_kv"
    check(candidate, *tensors(1, 300, dims=(128, 128), group=group))


BESIDE = {"overlap": 1}  # copies that go on while threads compute
# Of two warps, and split-KV with a row's threads in two warps.
SEVERAL_WARPS = [
    FUSED.replace(row_threads=8),
    FUSED.replace(row_threads=8, **BESIDE),
    TENSOR.replace(row_threads=16),
    TENSOR.replace(row_threads=16, vector=8, **BESIDE),
    SPLIT_KV.replace(column_threads=64, **BESIDE),
]


@pytest.mark.parametrize("candidate", SEVERAL_WARPS, ids=str)
def test_copies_beside_computing(candidate: Candidate) -> None:
    """At lengths around a block of keys: none, a part of one, several and a part."""
    dtype = "float16" if candidate.variant == "fused_tensor" else "float32"
    decodes = candidate.variant == "fused_split_kv"
    rows = 2 if decodes else 35
    for n, keys in enumerate((1, 15, 16, 17, 33, 200)):
        arrays = tensors(rows, keys, dims=(32, 16), dtype=dtype)
        window = (20, 3) if n % 2 and not decodes else None
        check(candidate, *arrays, ORDERS[n % 3], causal="bottom_right", window=window)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_tensor_cores_at_lengths_around_every_tile(dtype: str) -> None:
    sizes = product((1, 15, 16, 17), (1, 15, 17, 40))
    for n, (rows, keys) in enumerate(sizes):
        q, k, v = tensors(rows, keys, dims=(32, 48), dtype=dtype)
        check(TENSOR, q, k, v, ORDERS[n % 3], causal=(None, "bottom_right")[n // 3 % 2])


def test_many_small_weights_of_sixteen_bits_count_beside_a_great_one() -> None:
    """Weights of e**-18 are none in float16 beside one of 1."""
    q, k, v = (np.zeros((1, 1, n, 16), "float16") for n in (3, 1000, 1000))
    q[..., 0], k[0, 0, 0, 0], v[0, 0, 1:] = 1, 18, 64
    found, sums = attend(TENSOR, q, k, v, scale=1.0)
    expected = reference.attended(q, k, v, scale=1.0)
    np.testing.assert_allclose(found.astype(float), expected.out, rtol=0.02)
    np.testing.assert_allclose(sums, expected.lse, rtol=1e-6)


@pytest.mark.parametrize(
    "change", [{"rows": 4}, {"row_threads": 16, "keys": 8}, {"keys": 16, "vector": 1}]
)
def test_tiles_on_tensor_cores(change: dict[str, int]) -> None:
    check(TENSOR.replace(**change), *tensors(40, 70, dims=(16, 64), dtype="float16"), order=2)


def test_tensor_cores_with_many_options() -> None:
    rng = np.random.default_rng(5)
    q, k, v = tensors(21, 45, dims=(32, 32), dtype="float16")
    check(
        TENSOR, q, k, v, order=1, mask=mask_of("bool", 21, 45, rng), window=(30, 30), softcap=3.0,
        alibi_slopes=rng.random(4).astype("float32"), sinks=rng.standard_normal(4),
        kv_lengths=np.array([31, 0], np.int32),
    )  # fmt: skip
