"""Drawn calls of ``attention``: every option and combination agrees with float64, whatever the shapes,
strides and element types, and leaves its inputs alone."""

from __future__ import annotations

import math
import os
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from attention_bounds import assert_near, score_size  # noqa: E402
from attention_cases import laid_out, with_axes  # noqa: E402
from drawn_attention import Array, Call, as_kind, as_numpy, calls  # noqa: E402
from hypothesis import given, settings  # noqa: E402

from tvm_attention import attention, reference  # noqa: E402

DRAWS = int(os.environ.get("ATTENTION_DRAWS", "500"))


def expectation(call: Call, values: list[Array], options: dict[str, Any]) -> reference.Attended:
    """Of the whole (batch, heads, rows, columns); a mask of fewer axes is one of these."""
    mask = options.get("mask")
    if mask is not None and call.axes == 3 and mask.ndim == 3:
        mask = mask[:, None]
    return reference.attended(*values, **{**options, "mask": mask})


def size_of(call: Call, values: list[Array], options: dict[str, Any]) -> float:
    """Of the scores and of what is added to them."""
    scale = call.variety.dims[0] ** -0.5 if call.scale is None else call.scale
    added = [options["mask"]] if "mask" in options and not call.variety.has("bool") else []
    if call.variety.has("alibi"):
        farthest = max(call.rows, call.keys)
        added.append(options["alibi_slopes"] * np.float32(farthest))
    return score_size(values[0], values[1], scale, *(x.astype(np.float64) for x in added))


def poison(call: Call, values: list[Array], weights: Array) -> None:
    """NaN and Inf in every key and value that no query of its head may see."""
    shape = (call.batch, call.kv_heads, call.group, call.rows, call.keys)
    hidden = (weights.reshape(shape) == 0).all(axis=(2, 3))
    values[1][hidden] = np.nan
    values[2][hidden] = np.where(np.arange(call.variety.dims[1]) % 2, np.inf, np.nan)


def passed(call: Call, array: Array, layout: str) -> Any:
    """An input or output as the call passes it."""
    view = with_axes(laid_out(array, layout), call.axes)
    return as_kind(view.swapaxes(1, 2) if call.heads_inside else view, call.kind)


def whole(call: Call, result: Any, columns: tuple[int, ...], swapped: bool) -> Array:
    """A result as (batch, heads, rows, *columns), once its shape is right."""
    leading = call.shapes[0][:3]
    found = as_numpy(result)
    found = found.swapaxes(1, 2) if swapped else found
    axes = {2: leading[2:], 3: (leading[0], leading[2]), 4: leading}[call.axes]
    assert found.shape == (*axes, *columns)
    return found.reshape(*leading, *columns)


@settings(max_examples=DRAWS)
@given(calls())
def test_attention_agrees_with_float64(call: Call) -> None:
    values, options = list(call.values()), call.options()
    expected = expectation(call, values, options)
    size = size_of(call, values, options)
    span = float(np.ptp(np.append(values[2].astype(np.float64), 0.0)))
    if call.poison:
        poison(call, values, expected.weights)
    arrays = [passed(call, x, layout) for x, layout in zip(values, call.layouts, strict=True)]
    before = [as_numpy(x).tobytes() for x in arrays]
    given_options = dict(options)
    if "mask" in options:
        given_options["mask"] = as_kind(options["mask"], call.kind)
    wanted = call.variety.outputs.split()
    flags = {f"return_{name}": True for name in wanted}
    if call.heads_inside:
        flags["layout"] = "bshd"

    def attend(**more: Any) -> tuple[Any, ...]:
        found = attention(*arrays, **given_options, **flags, **more)
        return found if wanted else (found,)

    nothing = np.full((*call.shapes[0][:3], call.variety.dims[1]), np.nan, values[0].dtype)
    out = None if call.out_layout is None else passed(call, nothing, call.out_layout)
    found = attend(out=out)
    assert out is None or found[0] is out
    assert all(type(x) is type(arrays[0]) for x in found)
    parts = dict(zip(["out", *wanted], found, strict=True))
    dtype = call.variety.dtype
    got = whole(call, parts["out"], call.shapes[2][3:], call.heads_inside)
    assert_near(got, expected.out, dtype, span=span, size=size, what=str(call))
    if "lse" in parts:
        got = whole(call, parts["lse"], (), False)
        summed = size + math.sqrt(call.keys) / 2  # the sum of so many weights, one by one, drifts
        assert_near(got, expected.lse, "float32", span=1.0, size=summed, what=f"lse {call}")
    if "weights" in parts:
        got = whole(call, parts["weights"], (call.keys,), False)
        assert_near(got, expected.weights, dtype, span=1.0, size=size, what=f"weights {call}")
    for again in (attend(), attend()):  # the second may be a remembered call
        for new, old in zip(again, found, strict=True):
            assert as_numpy(new).tobytes() == as_numpy(old).tobytes()
            assert old is not new
            assert not np.shares_memory(as_numpy(new), as_numpy(old))
    for array, old in zip(arrays, before, strict=True):
        assert as_numpy(array).tobytes() == old
