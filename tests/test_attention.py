"""The full call: sizes at the edges with options, masks however they lie, outputs, layouts, threads."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from attention_bounds import assert_near
from attention_cases import LAYOUTS, Array, laid_out, query_key_value, unit_normal
from attention_variants import bounds
from test_functional_processes import in_threads

from tvm_attention import attention, functional, reference
from tvm_attention.dtypes import numpy_dtype
from tvm_attention.errors import InvalidTypeError, InvalidValueError

torch = pytest.importorskip("torch")


def check(q: Array, k: Array, v: Array, **options: Any) -> Array:
    """The result, once it and its log-sum-exp are right."""
    found, lse = attention(q, k, v, return_lse=True, **options)
    expected = reference.attended(q, k, v, **options)
    size, span = bounds(q, k, v, **options)
    what = f"{q.shape} {k.shape} {q.dtype} {sorted(options)}"
    assert_near(found, expected.out, str(q.dtype), span=span, size=size, what=what)
    assert_near(lse, expected.lse, "float32", span=1.0, size=size, what=f"lse {what}")
    result: Array = found
    return result


def mask_of(q: Array, k: Array, hidden: float = 0.4, seed: int = 0) -> Array:
    shape = (*q.shape[:-1], k.shape[-2])
    return np.random.default_rng(seed).random(shape) >= hidden


DTYPES = ("float32", "float16", "bfloat16")


@pytest.mark.parametrize("dim", [1, 5, 33, 512])
def test_head_dimensions(dim: int) -> None:
    dtype = numpy_dtype(DTYPES[dim % 3])
    q, k, v = (unit_normal(1, 2, n, dim, seed=n).astype(dtype) for n in (11, 37, 37))
    check(q, k, v, mask=mask_of(q, k), softcap=5.0)
    q = q[:, :, :1]
    check(q, k, v, mask=mask_of(q, k), softcap=5.0)


@pytest.mark.parametrize("dtype", DTYPES)
def test_more_heads_than_sixteen_bits_count(dtype: str) -> None:
    q, k, v = (unit_normal(70_000, 1, n, 4, seed=n).astype(numpy_dtype(dtype)) for n in (1, 3, 3))
    check(q, k, v, mask=mask_of(q, k), sinks=[0.5])


ALL: dict[str, Any] = {
    "causal": "bottom_right", "window": (9, -1), "softcap": 4.0,
    "alibi_slopes": [0.1, 0.2, 0.0, 0.4], "sinks": [0.0, 1.0, -np.inf, 2.0],
}  # fmt: skip


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rows", [0, 1, 12])
@pytest.mark.parametrize("keys", [0, 1, 20])
def test_no_rows_no_keys_and_one(rows: int, keys: int, dtype: str) -> None:
    q, k, v = (x.astype(numpy_dtype(dtype)) for x in query_key_value(4, 2, rows, keys))
    options = {**ALL, "mask": mask_of(q, k), "kv_lengths": [keys, keys // 2]}
    found, lse, weights = attention(q, k, v, **options, return_lse=True, return_weights=True)
    expected = reference.attended(q, k, v, **options)
    size, span = bounds(q, k, v, **options)
    assert_near(found, expected.out, dtype, span=span, size=size, what="out")
    assert_near(lse, expected.lse, "float32", span=1.0, size=size, what="lse")
    assert_near(weights, expected.weights, dtype, span=1.0, size=size, what="weights")


def test_no_batch() -> None:
    q, k, v = (x[:0] for x in query_key_value(4, 2))
    for options in ({}, {"mask": mask_of(q, k)}, {"kv_lengths": []}, ALL):
        found = attention(q, k, v, return_lse=True, return_weights=True, **options)
        assert [x.shape for x in found] == [(0, 4, 12, 24), (0, 4, 12), (0, 4, 12, 20)]


MASKS = {
    "keys outside": lambda m: np.ascontiguousarray(m.T).T,
    "every second": lambda m: np.repeat(np.repeat(m, 2, axis=3), 2, axis=2)[:, :, ::2, ::2],
    "reversed": lambda m: np.ascontiguousarray(m[:, ::-1, ::-1, ::-1])[:, ::-1, ::-1, ::-1],
    "unaligned": lambda m: np.frombuffer(b"x" + m.tobytes(), m.dtype, offset=1).reshape(m.shape),
    "one batch": lambda m: np.broadcast_to(m[:1], m.shape),
    "one head": lambda m: m[:, :1],
    "one row": lambda m: np.broadcast_to(m[:, :, :1], m.shape),
    "one key": lambda m: m[..., 3:4],
    "fewer axes": lambda m: m[0, 1],
    "keys alone": lambda m: m[0, 1, -1],
    "one number": lambda m: m[0, 0, 0, 0],
}  # fmt: skip


@pytest.mark.parametrize("layout", MASKS)
@pytest.mark.parametrize("dtype", ["bool", "float32", "bfloat16"])
def test_masks_however_they_lie(layout: str, dtype: str) -> None:
    of = "float32" if dtype == "bool" else dtype
    for rows in (1, 12):
        q, k, v = (x.astype(numpy_dtype(of)) for x in query_key_value(4, 2, rows))
        seen = mask_of(q, k)
        bias = np.where(seen, unit_normal(*seen.shape), -np.inf)
        mask = MASKS[layout](seen if dtype == "bool" else bias.astype(numpy_dtype(dtype)))
        before = mask.tobytes()
        check(q, k, v, mask=mask)
        assert mask.tobytes() == before


@pytest.mark.parametrize("dtype", DTYPES)
def test_inputs_are_read_in_place_and_never_written(dtype: str) -> None:
    """Read-only and unaligned."""
    q, k, v = (x.astype(numpy_dtype(dtype)) for x in query_key_value(4, 2))
    given = {**ALL, "mask": mask_of(q, k), "kv_lengths": np.array([20, 11])}
    arrays = [np.frombuffer(b"x" + x.tobytes(), x.dtype, offset=1) for x in (q, k, v)]
    arrays = [x.reshape(y.shape) for x, y in zip(arrays, (q, k, v), strict=True)]
    kept = {n: np.array(x) for n, x in given.items() if not isinstance(x, (str, float, tuple))}
    found = check(*arrays, **given)
    np.testing.assert_array_equal(found, attention(q, k, v, **given))
    for array, original in zip(arrays, (q, k, v), strict=True):
        assert array.tobytes() == original.tobytes()
    for name, original in kept.items():
        np.testing.assert_array_equal(given[name], original)


def test_the_same_call_twice_is_bit_identical() -> None:
    for rows in (1, 3, 65):
        q, k, v = (unit_normal(2, 4, n, 16, seed=n) for n in (rows, 1500, 1500))
        k[:, :, 7], v[:, :, 9] = np.nan, np.inf
        mask = mask_of(q, k)
        mask[..., 7:10] = False
        options = {**ALL, "window": (400, -1), "mask": mask}
        first = attention(q, k, v, **options)
        assert np.isfinite(first).all()
        for _ in range(3):
            assert attention(q, k, v, **options).tobytes() == first.tobytes()
        functional.forget_calls()
        assert attention(q, k, v, **options).tobytes() == first.tobytes()


def test_threads_at_once_with_options_of_their_own() -> None:
    q, k, v = query_key_value(4, 2, 40, 300)
    options: list[dict[str, Any]] = [
        {"mask": mask_of(q, k, seed=n), "kv_lengths": [300 - 9 * n, 7 * n]} for n in range(3)
    ]
    options += [{"causal": "top_left"}, {"window": (5, 5)}, {"mask": mask_of(q, k)[0, 0]}]
    expected = [attention(q, k, v, return_lse=True, **o) for o in options]

    def work(number: int) -> None:
        for turn in range(20):
            n = (number + turn) % len(options)
            found = attention(q, k, v, return_lse=True, **options[n])
            for got, wanted in zip(found, expected[n], strict=True):
                np.testing.assert_array_equal(got, wanted)

    in_threads(4, work)


@pytest.mark.parametrize("out", [None, *LAYOUTS])
@pytest.mark.parametrize("dtype", DTYPES)
def test_rows_before_heads(dtype: str, out: str | None) -> None:
    q, k, v = (x.astype(numpy_dtype(dtype)) for x in query_key_value(4, 2))
    options = {**ALL, "mask": mask_of(q, k)}
    wanted = attention(q, k, v, **options, return_lse=True, return_weights=True)
    given = None
    if out is not None:
        nothing = np.full((2, 4, 12, 24), np.nan, q.dtype)
        given = laid_out(nothing, out).swapaxes(1, 2)
    swapped = [np.ascontiguousarray(x.swapaxes(1, 2)) for x in (q, k, v)]
    more = {"layout": "bshd", "return_lse": True, "return_weights": True}
    found = attention(*swapped, **options, **more, out=given)
    assert given is None or found[0] is given
    np.testing.assert_array_equal(found[0].swapaxes(1, 2), wanted[0])
    for got, expected in zip(found[1:], wanted[1:], strict=True):
        np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize("layout", ["bhsd", "bshd"])
def test_outputs_that_are_refused(layout: str) -> None:
    arrays = list(query_key_value(4, 2))
    shape = [2, 4, 12, 24]
    if layout == "bshd":
        arrays = [x.swapaxes(1, 2) for x in arrays]
        shape = [2, 12, 4, 24]
    good = np.zeros(shape, np.float32)
    read_only = good.copy()
    read_only.flags.writeable = False
    refused = [
        (np.zeros((2, 12, 24, 4), np.float32), InvalidValueError, "shape"),
        (np.zeros((2, *shape[:0:-1]), np.float32), InvalidValueError, "shape"),
        (good.swapaxes(1, 2), InvalidValueError, "shape"),
        (good[0], InvalidValueError, "shape"),
        (good[:1], InvalidValueError, "shape"),
        (good.astype(np.float16), InvalidTypeError, "float32, got float16"),
        (np.zeros([*shape[:3], 48], np.float32)[..., ::2], InvalidValueError, "dense last axis"),
        (np.broadcast_to(good[:1], shape), InvalidValueError, "read-only|distinct"),
        (read_only, InvalidValueError, "read-only"),
        (torch.zeros(*shape), InvalidTypeError, "like the query"),
    ]
    for out, error, message in refused:
        with pytest.raises(error, match=f"^out: expected .*({message})"):
            attention(*arrays, layout=layout, out=out)
    assert attention(*arrays, layout=layout, out=good) is good
    assert good.any()


def test_layouts_that_are_refused() -> None:
    q, k, v = query_key_value()
    with pytest.raises(InvalidValueError, match="layout: expected 'bhsd' or 'bshd', got 'sbhd'"):
        attention(q, k, v, layout="sbhd")
    with pytest.raises(InvalidValueError, match=r"query: expected \(batch, rows, heads, dim\)"):
        attention(q[0], k[0], v[0], layout="bshd")


@pytest.mark.skipif(sys.platform != "linux", reason="protects pages as Linux does")
def test_nothing_is_read_beyond_the_arrays() -> None:
    program = Path(__file__).with_name("read_at_the_edge.py")
    child = subprocess.run([sys.executable, program], capture_output=True, text=True)
    assert child.returncode == 0, (child.returncode, child.stdout[-200:], child.stderr[-2000:])
    assert child.stdout.count("\n") == 28
