"""Drawn shapes and strides: calls of the torch-shaped function and of kernels agree with float64 and
leave their inputs alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from attention_cases import LAYOUTS, NOT_DENSE, Array, assert_right, laid_out, with_axes
from hypothesis import given, settings
from hypothesis import strategies as st

from tvm_attention import load, scaled_dot_product_attention
from tvm_attention.workload import AttentionWorkload

torch = pytest.importorskip("torch")

# A pair of head dimensions costs ten kernels: off every vector, half of one, and whole ones.
DIMS = [(1, 1), (5, 3), (16, 24), (64, 40)]


@dataclass(frozen=True)
class Call:
    """One drawn call; ``axes`` below 4 need one batch or one head."""

    dims: tuple[int, int]
    batch: int
    kv_heads: int
    group: int
    rows: int
    keys: int
    axes: int
    causal: str | None
    scale: float | None
    layouts: tuple[str, str, str]
    as_torch: bool
    seed: int

    @property
    def shapes(self) -> list[tuple[int, int, int, int]]:
        heads = self.kv_heads * self.group
        return [
            (self.batch, heads, self.rows, self.dims[0]),
            (self.batch, self.kv_heads, self.keys, self.dims[0]),
            (self.batch, self.kv_heads, self.keys, self.dims[1]),
        ]


@st.composite
def calls(draw: st.DrawFn, least: int = 0) -> Call:
    axes = draw(st.sampled_from([4, 4, 4, 3, 2]))
    dims = draw(st.sampled_from(DIMS))
    factor = draw(st.sampled_from([None, None, 1.0, 0.5, -1.0, 0.0]))
    return Call(
        dims=dims,
        batch=draw(st.integers(least, 3)) if axes > 2 else 1,
        kv_heads=draw(st.integers(1, 3)) if axes == 4 else 1,
        group=draw(st.integers(1, 4)) if axes == 4 else 1,
        rows=draw(st.one_of(st.integers(least, 9), st.integers(10, 70))),
        keys=draw(st.one_of(st.integers(least, 300), st.integers(1025, 1100))),
        axes=axes,
        causal=draw(st.sampled_from([None, "top_left", "bottom_right"])),
        scale=None if factor is None else factor / dims[0] ** 0.5,
        layouts=tuple(draw(st.sampled_from(LAYOUTS + NOT_DENSE)) for _ in range(3)),  # type: ignore[arg-type]
        as_torch=draw(st.booleans()),
        seed=draw(st.integers(0, 2**32 - 1)),
    )


def arguments(call: Call) -> tuple[list[Array], list[Any]]:
    """The values (B, H, rows, dim) in NumPy, and the arrays to pass."""
    rng = np.random.default_rng(call.seed)
    values = [rng.standard_normal(s, dtype=np.float32) for s in call.shapes]
    arrays: list[Any] = []
    for array, layout in zip(values, call.layouts, strict=True):
        view = with_axes(laid_out(array, layout), call.axes)
        if not call.as_torch:
            arrays.append(view)
        else:  # torch has no negative strides
            negative = any(s < 0 for s in view.strides)
            arrays.append(torch.from_numpy(view.copy() if negative else view))
    return values, arrays


def check(call: Call, result: Any, values: list[Array], arrays: list[Any]) -> None:
    assert type(result) is type(arrays[0])
    found = np.asarray(result)
    whole = (*call.shapes[0][:3], call.dims[1])
    assert found.shape == with_axes(np.empty(whole), call.axes).shape
    assert_right(
        found.reshape(whole), *values, causal=call.causal, scale=call.scale, what=str(call)
    )
    for before, after in zip(values, arrays, strict=True):
        np.testing.assert_array_equal(np.asarray(after), with_axes(before, call.axes))


@given(calls())
def test_the_function_agrees_with_float64(call: Call) -> None:
    if call.causal == "bottom_right":  # the function has torch's causal alone
        call = Call(**{**call.__dict__, "causal": "top_left"})
    values, arrays = arguments(call)

    def attention() -> Any:
        return scaled_dot_product_attention(
            *arrays,
            is_causal=call.causal is not None,
            scale=call.scale,
            enable_gqa=call.group > 1,
        )

    first = attention()
    check(call, first, values, arrays)
    again = attention()  # remembered, where it can be
    np.testing.assert_array_equal(np.asarray(again), np.asarray(first))
    if first.shape[0]:
        assert not np.shares_memory(np.asarray(again), np.asarray(first))


@settings(max_examples=50)
@given(calls(least=1), st.sampled_from(["none", "dense", "heads inside", "padded rows"]))
def test_a_kernel_agrees_with_float64(call: Call, out_layout: str) -> None:
    batch, heads, rows, _ = call.shapes[0]
    workload = AttentionWorkload(
        head_dim=call.dims[0], value_dim=call.dims[1], causal=call.causal, batch=batch,
        query_heads=heads, kv_heads=call.kv_heads, query_length=rows, key_length=call.keys,
    )  # fmt: skip
    values, arrays = arguments(call)
    out: Any = None
    if out_layout != "none":
        nothing = np.full((batch, heads, rows, call.dims[1]), np.nan, np.float32)
        out = with_axes(laid_out(nothing, out_layout), call.axes)
        out = torch.from_numpy(out) if call.as_torch else out
    result = load(workload)(*arrays, out, scale=call.scale)
    assert out is None or result is out
    check(call, result, values, arrays)
