"""The polynomial 2**x: its stated error bound, its ends, and what is no number."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from attention_cases import runnable_levels
from numpy.typing import NDArray

from tvm_attention._tvm import import_tvm
from tvm_attention.compute.exp2 import (
    LOWEST,
    RELATIVE_ERROR,
    WEIGHT_ERRORS,
    exp2,
)
from tvm_attention.compute.problem import Exponent
from tvm_attention.target import detect_target

Exp2 = Callable[[NDArray[np.float32]], NDArray[np.float32]]


WAYS = [
    (level, exponent)
    for level in runnable_levels()
    for exponent in ("bits", "instructions")
    if exponent == "bits" or level == "x86-64-v4"
]


@pytest.fixture(scope="module", params=WAYS, ids="-".join)
def compiled(request: pytest.FixtureRequest) -> Exp2:
    """exp2 of an array, vectorised, for a level with and without fused multiply-adds, with and without
    instructions for either end of it."""
    return _compiled(*request.param)


def _compiled(level: str, exponent: Exponent, precision: str = "float32", lanes: int = 16) -> Exp2:
    tvm = import_tvm()
    from tvm import te
    from tvm.s_tir import Schedule

    from tvm_attention.lowering.machine_code import compiled

    n = te.var("n", "int32")
    x = te.placeholder((n,), "float32", name="x")
    y = te.compute((n,), lambda i: exp2(x[i], precision, exponent), name="y")
    schedule = Schedule(te.create_prim_func([x, y]))
    _, lane = schedule.split(schedule.get_loops(schedule.get_sblock("y"))[0], [None, lanes])
    schedule.vectorize(lane)
    module: Any = compiled({"main": schedule.mod["main"]}, detect_target(level))

    def run(values: NDArray[np.float32]) -> NDArray[np.float32]:
        # In TVM's own memory, which is aligned as its code for tensors takes for granted.
        argument = tvm.runtime.tensor(values)
        out = tvm.runtime.tensor(np.full_like(values, np.nan))
        module["main"](argument, out)
        result: NDArray[np.float32] = out.numpy()
        return result

    return run


def worst(compiled: Exp2, x: NDArray[np.float32]) -> float:
    expected = np.exp2(x.astype(np.float64))
    return float(np.max(np.abs(compiled(x) - expected) / expected))


def test_relative_error_is_within_the_stated_bound(
    compiled: Exp2, request: pytest.FixtureRequest
) -> None:
    """Dense samples of the range, every float32 from -0.25 to -2, and the edges of r."""
    whole = np.linspace(LOWEST, 0.0, 4_000_001, dtype=np.float32)
    octaves = np.arange(0xBE800000, 0xC0000001, dtype=np.uint32).view(np.float32)
    halves = np.arange(LOWEST + 0.5, 0.5, dtype=np.float32)
    edges = np.concatenate([np.nextafter(halves, np.float32(s)) for s in (-np.inf, np.inf)])
    tiny = -np.logspace(-45, 0, 1_000_001).astype(np.float32)
    found = max(worst(compiled, x) for x in (whole, octaves, halves, edges, tiny))
    if "x86-64-v2" in request.node.name:
        assert found <= 1.05e-7
        pytest.xfail("the bound is stated for fused multiply-adds, which x86-64-v2 lacks")
    assert found <= RELATIVE_ERROR


def test_the_bound_is_no_larger_than_it_must_be(compiled: Exp2) -> None:
    x = np.linspace(LOWEST, 0.0, 4_000_001, dtype=np.float32)
    assert worst(compiled, x) >= 0.5 * RELATIVE_ERROR


def test_powers_of_two_are_exact(compiled: Exp2) -> None:
    """The largest score of a row has weight 1, with either sign of zero."""
    x = np.array([0.0, -0.0, *range(int(LOWEST), 0)], np.float32)
    np.testing.assert_array_equal(compiled(x), np.exp2(x))


def test_far_below_zero_is_the_smallest_weight(compiled: Exp2) -> None:
    far = np.array([LOWEST, np.nextafter(np.float32(LOWEST), np.float32(-np.inf)), -126.5, -1e4])
    x = np.concatenate([far, [np.finfo(np.float32).min, -np.inf]]).astype(np.float32)
    np.testing.assert_array_equal(compiled(x), np.full(6, 2.0**LOWEST, np.float32))


def test_a_nan_stays_a_nan(compiled: Exp2) -> None:
    bits = [0x7FC00000, 0xFFC00000, 0x7F800001, 0x7FC00001, 0xFFFFFFFF]
    assert np.isnan(compiled(np.array(bits, np.uint32).view(np.float32))).all()


@pytest.mark.parametrize("precision", WEIGHT_ERRORS)
@pytest.mark.parametrize("way", WAYS[-2:], ids="-".join)
def test_polynomials_of_weights_are_within_their_bounds(
    way: tuple[str, Exponent], precision: str
) -> None:
    """And the bounds are no larger than they must be."""
    x = np.linspace(LOWEST, 0.0, 1_000_001, dtype=np.float32)
    error = worst(_compiled(*way, precision), x)
    assert 0.5 * WEIGHT_ERRORS[precision] <= error <= WEIGHT_ERRORS[precision]


@pytest.mark.skipif("x86-64-v4" not in runnable_levels(), reason="AVX-512 has the instructions")
@pytest.mark.parametrize("lanes", [1, 2, 4, 5, 8, 12])
def test_instructions_compute_all_lanes_alike(lanes: int) -> None:
    """Whatever the width of vectors that a loop is made of."""
    x = np.linspace(LOWEST, 0.0, 10_007, dtype=np.float32)
    whole, parts = (_compiled("x86-64-v4", "instructions", lanes=n)(x) for n in (16, lanes))
    np.testing.assert_array_equal(whole, parts)
