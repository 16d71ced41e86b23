"""The reference against the plainest loops, and its rows at the edges."""

from __future__ import annotations

import itertools
import math
import sys
from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray

from tvm_attention import dtypes, reference
from tvm_attention.arrays import NumPyArrays
from tvm_attention.call import Call
from tvm_attention.errors import UnsupportedError
from tvm_attention.operands import geometry
from tvm_attention.options import opened_options
from tvm_attention.random_calls import random_call, random_inputs, random_options
from tvm_attention.workload import AttentionWorkload

BATCH, HEADS, KV_HEADS, ROWS, KEYS = 2, 4, 2, 5, 7
RNG = np.random.default_rng(0)
QUERY, KEY, VALUE = (
    RNG.standard_normal((BATCH, h, n, d))
    for h, n, d in ((HEADS, ROWS, 3), (KV_HEADS, KEYS, 3), (KV_HEADS, KEYS, 6))
)
BOOL_MASK = RNG.random((BATCH, 1, ROWS, KEYS)) < 0.6
FLOAT_MASK = np.where(RNG.random((HEADS, 1, KEYS)) < 0.2, -np.inf, RNG.random((HEADS, 1, KEYS)))
SLOPES = np.array([0.5, 0.25, 0.0, -0.125])
SINKS = np.array([0.3, -math.inf, 2.0, -1.0])

CHOICES: dict[str, list[Any]] = {
    "mask": [None, BOOL_MASK, FLOAT_MASK],
    "causal": [None, "top_left", "bottom_right"],
    "window": [None, (1, 0), (2, None), (-1, 1)],
    "softcap": [None, 1.5],
    "alibi_slopes": [None, SLOPES, np.stack([SLOPES, -SLOPES])],
    "sinks": [None, SINKS],
    "kv_lengths": [None, [7, 2], [0, 4]],
    "scale": [None, -0.7],
}


def one_row(
    b: int, h: int, i: int, *, mask: Any, causal: str | None, window: Any, softcap: float | None,
    alibi_slopes: Any, sinks: Any, kv_lengths: Any, scale: float | None,
) -> tuple[list[float], float, list[float]]:  # fmt: skip
    """Result, log-sum-exp and weights of one query row, in numbers alone."""
    length = KEYS if kv_lengths is None else kv_lengths[b]
    place = i + (0 if causal == "top_left" else length - ROWS)
    exponentials = []
    for j in range(KEYS):
        s = float(QUERY[b, h, i] @ KEY[b, h // 2, j])
        s *= scale if scale is not None else 1 / math.sqrt(3)
        if softcap is not None:
            s = softcap * math.tanh(s / softcap)
        if alibi_slopes is not None:
            s -= np.broadcast_to(alibi_slopes, (BATCH, HEADS))[b, h] * abs(place - j)
        seen = j < length and (causal is None or j <= place)
        for limit, distance in zip(window or (), (place - j, j - place), strict=False):
            seen = seen and (limit is None or limit < 0 or distance <= limit)
        if mask is not None:
            own = np.broadcast_to(mask, (BATCH, HEADS, ROWS, KEYS))[b, h, i, j]
            seen = seen and (bool(own) if mask.dtype == bool else own != -math.inf)
            s += 0 if mask.dtype == bool else own
        exponentials.append(math.exp(s) if seen else 0.0)
    total = sum(exponentials) + (0.0 if sinks is None else math.exp(sinks[h]))
    weights = [x / total if total else 0.0 for x in exponentials]
    out = [sum(w * x for w, x in zip(weights, VALUE[b, h // 2, :, e])) for e in range(6)]  # noqa: B905
    return out, math.log(total) if total else -math.inf, weights


def some_combinations() -> list[dict[str, Any]]:
    """Each choice alone, and combinations drawn by chance."""
    rng = np.random.default_rng(1)
    every = list(itertools.product(*(range(len(x)) for x in CHOICES.values())))
    chosen = rng.choice(len(every), 120, replace=False)
    alone = [tuple(c if n == m else 0 for n in range(8)) for m in range(8) for c in range(3)]
    combinations = [every[i] for i in chosen] + [x for x in alone if x in set(every)]
    return [
        {name: values[i] for (name, values), i in zip(CHOICES.items(), picked, strict=True)}
        for picked in combinations
    ]


def test_every_option_is_what_loops_say() -> None:
    for options in some_combinations():
        found = reference.attended(QUERY, KEY, VALUE, **options)
        for b, h, i in np.ndindex(BATCH, HEADS, ROWS):
            expected = one_row(b, h, i, **options)
            for got, want in zip(found, expected, strict=True):
                np.testing.assert_allclose(
                    got[b, h, i], want, rtol=1e-9, atol=1e-12, err_msg=str(options)
                )


def test_what_is_asked_for_is_returned() -> None:
    out, lse, weights = reference.attended(QUERY, KEY, VALUE)
    assert out.shape == (BATCH, HEADS, ROWS, 6)
    assert lse.shape == (BATCH, HEADS, ROWS)
    assert weights.shape == (BATCH, HEADS, ROWS, KEYS)
    np.testing.assert_array_equal(reference.attention(QUERY, KEY, VALUE), out)
    for flags, expected in (
        ({"return_lse": True}, (out, lse)),
        ({"return_weights": True}, (out, weights)),
        ({"return_lse": True, "return_weights": True}, (out, lse, weights)),
    ):
        found = reference.attention(QUERY, KEY, VALUE, **flags)
        for got, want in zip(found, expected, strict=True):
            np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("spoiler", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize(
    ("options", "spoiled", "first_row"),
    [
        ({"mask": np.arange(KEYS) != 3}, 3, ROWS),
        ({"mask": np.where(np.arange(KEYS) != 3, 0.0, -np.inf)}, 3, ROWS),
        ({"causal": "top_left"}, 3, 3),
        ({"window": (-1, 0)}, 6, 4),
        ({"window": (1, -1)}, 2, 0),
        ({"kv_lengths": [6, 6]}, 6, ROWS),
    ],
    ids=["bool", "float", "causal", "right", "left", "lengths"],
)
def test_what_a_masked_key_holds_reaches_nothing(
    options: dict[str, Any], spoiled: int, first_row: int, spoiler: float
) -> None:
    """``first_row``: the first that sees the key; the window to the left ends with row 1."""
    blind = slice(2, None) if options.get("window") == (1, -1) else slice(0, first_row)
    expected = reference.attended(QUERY, KEY, VALUE, **options)
    key, value = KEY.copy(), VALUE.copy()
    key[:, :, spoiled], value[:, :, spoiled] = spoiler, spoiler
    found = reference.attended(QUERY, key, value, **options)
    for got, want in zip(found, expected, strict=True):
        np.testing.assert_array_equal(got[:, :, blind], want[:, :, blind])
    seeing = np.delete(found.out, range(ROWS)[blind], axis=2)
    assert not np.isfinite(seeing).any()  # it is there, and seen where it may be


def test_rows_that_see_nothing() -> None:
    mask = np.ones((ROWS, KEYS), bool)
    mask[2] = False
    for m in (mask, np.where(mask, 0.0, -np.inf)):
        out, lse, weights = reference.attended(QUERY, KEY, VALUE, mask=m)
        assert not out[:, :, 2].any()
        assert not weights[:, :, 2].any()
        assert np.isneginf(lse[:, :, 2]).all()
        whole = reference.attended(QUERY, KEY, VALUE)
        np.testing.assert_array_equal(np.delete(out, 2, 2), np.delete(whole.out, 2, 2))
        with_sinks = reference.attended(QUERY, KEY, VALUE, mask=m, sinks=SINKS)
        assert not with_sinks.out[:, :, 2].any()
        np.testing.assert_array_equal(with_sinks.lse[0, :, 2], SINKS)
    no_keys = reference.attended(QUERY, KEY[:, :, :0], VALUE[:, :, :0])
    assert not no_keys.out.any()
    assert np.isneginf(no_keys.lse).all()


def test_a_nan_in_a_query_stays_in_its_row() -> None:
    query = QUERY.copy()
    query[1, 2, 3, 0] = np.nan
    expected = reference.attended(QUERY, KEY, VALUE, sinks=SINKS, causal="bottom_right")
    found = reference.attended(query, KEY, VALUE, sinks=SINKS, causal="bottom_right")
    for got, want in zip(found, expected, strict=True):
        assert np.isnan(got[1, 2, 3]).all()
        got[1, 2, 3] = want[1, 2, 3]
        np.testing.assert_array_equal(got, want)


def test_the_least_number_as_a_mask_hides_but_is_no_minus_infinity() -> None:
    least = float(np.finfo(np.float32).min)
    mask = np.where(np.arange(KEYS) < 3, least, 0.0)
    np.testing.assert_array_equal(
        reference.attention(QUERY, KEY, VALUE, mask=mask),
        reference.attention(QUERY, KEY, VALUE, mask=np.arange(KEYS) >= 3),
    )
    mean = np.repeat(VALUE.mean(axis=2, keepdims=True), 2, axis=1)
    found = reference.attention(QUERY, KEY, VALUE, mask=np.full(KEYS, least))
    np.testing.assert_allclose(found, np.broadcast_to(mean, found.shape), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_random_inputs_have_the_workloads_dtype(dtype: str) -> None:
    workload = AttentionWorkload(head_dim=8, query_heads=4, kv_heads=2)
    object.__setattr__(workload, "dtype", dtype)
    q, k, v = random_inputs(workload, seed=3)
    plain = random_inputs(AttentionWorkload(head_dim=8, query_heads=4, kv_heads=2), 3)
    for array, wide in zip((q, k, v), plain, strict=True):
        assert str(array.dtype) == dtype
        np.testing.assert_array_equal(array, wide.astype(array.dtype))
    found: NDArray[np.float64] = reference.attention(q, k, v)
    wider = reference.attention(*(x.astype(np.float64) for x in (q, k, v)))
    np.testing.assert_array_equal(found, wider)


def test_types_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, size in dtypes.ELEMENT_BYTES.items():
        assert dtypes.numpy_dtype(name).itemsize == size
        assert str(dtypes.numpy_dtype(name)) == name
    assert dtypes.numpy_dtype("bfloat16") == ml_dtypes.bfloat16
    monkeypatch.setitem(sys.modules, "ml_dtypes", None)
    with pytest.raises(UnsupportedError, match=r"bfloat16: expected .*ml_dtypes.*pip install"):
        dtypes.numpy_dtype("bfloat16")


OPTIONS: list[tuple[dict[str, Any], set[str]]] = [
    ({}, set()),
    ({"causal": "bottom_right", "window": (3, -1)}, set()),
    ({"mask": "bool"}, {"mask"}),
    ({"mask": "float32", "mask_per_key": True}, {"mask"}),
    ({"mask": "bfloat16", "mask_dense": True}, {"mask"}),
    ({"softcap": True, "alibi": True, "sinks": True}, {"softcap", "alibi_slopes", "sinks"}),
    ({"ragged": True}, {"kv_lengths"}),
]


@pytest.mark.parametrize(("fields", "names"), OPTIONS, ids=lambda x: "-".join(sorted(x)))
def test_random_options_make_a_call_of_the_workload(
    fields: dict[str, Any], names: set[str]
) -> None:
    dtype = "bfloat16" if fields.get("mask") == "bfloat16" else "float32"
    workload = AttentionWorkload(
        head_dim=8, batch=2, query_heads=4, kv_heads=2, query_length=30, key_length=50,
        dtype=dtype, **fields,
    )  # fmt: skip
    options = random_options(workload, seed=1)
    assert set(options) == names | {"causal", "window"}
    query, key, value = random_inputs(workload, seed=1)
    sizes = geometry(query.shape, key.shape, value.shape, enable_gqa=True)
    opened = opened_options(NumPyArrays(), sizes, query_dtype=dtype, **options)
    assert Call.of(sizes, opened, dtype).workload() == workload
    assert np.isfinite(reference.attention(query, key, value, **options)).all()
    again = random_options(workload, seed=1)
    other = random_options(workload, seed=2)
    for name in names - {"softcap", "alibi_slopes"}:
        np.testing.assert_array_equal(options[name], again[name])
        assert not np.array_equal(options[name], other[name])
    if "mask" in names:
        mask = options["mask"]
        hidden = ~mask if mask.dtype == bool else np.isneginf(mask.astype(np.float32))
        assert 0.1 < hidden.mean() < 0.3


STORED: list[dict[str, Any]] = [
    {"kv_dtype": "int8"}, {"paged": True, "ragged": True}, {"paged": True},
    {"kv_dtype": "int8", "paged": True, "ragged": True, "mask": "bool"},
]  # fmt: skip


@pytest.mark.parametrize("fields", STORED, ids=lambda x: "-".join(x))
def test_random_calls_are_of_the_workload_and_of_the_same_numbers(fields: dict[str, Any]) -> None:
    workload = AttentionWorkload(
        head_dim=8, value_dim=12, batch=2, query_heads=4, kv_heads=2, query_length=30, key_length=50,
        **fields,
    )  # fmt: skip
    found = random_call(workload, seed=1)
    assert found.call.workload() == workload
    scales = (None, None)
    if found.call.scales is not None:
        scales = (found.call.scales.key, found.call.scales.value)
    for stored, plain, scale in zip(found.arrays[1:], found.inputs[1:], scales, strict=True):
        assert plain.shape[:3] == (2, 2, 50)
        if found.call.pages is not None:
            table = found.call.pages.table
            assert sorted(table.ravel().tolist()) == list(range(len(stored)))
            assert (np.diff(table.ravel()) != 1).any()
            stored = np.stack([np.concatenate(list(stored[pages]), axis=1) for pages in table])
        numbers = stored[:, :, :50]
        if scale is not None:
            assert stored.dtype == np.int8
            assert np.abs(numbers).max() == 127
            numbers = numbers * scale[..., None]
        np.testing.assert_array_equal(numbers, plain)


def test_random_calls_of_int8_are_near_what_was_drawn() -> None:
    workload = AttentionWorkload(head_dim=8, query_length=30, key_length=50)
    exact = random_call(workload, seed=1)
    small = random_call(replace(workload, kv_dtype="int8"), seed=1)
    for one, other in zip(exact.inputs, small.inputs, strict=True):
        np.testing.assert_allclose(one, other, atol=np.abs(one).max() / 127 / 2 + 1e-6)


@pytest.mark.parametrize(
    ("output", "columns"), [("attention", 12), ("attention_and_lse", 12), ("weights", 50)]
)
def test_outputs_of_random_calls(output: str, columns: int) -> None:
    workload = AttentionWorkload(
        head_dim=8, value_dim=12, query_heads=4, query_length=30, key_length=50, dtype="float16"
    )
    out, lse = random_call(workload).outputs(output)
    assert (out.shape, out.dtype) == ((1, 4, 30, columns), np.float16)
    assert (lse is not None) == (output == "attention_and_lse")
    assert lse is None or (lse.shape, lse.dtype) == ((1, 4, 30), np.float32)
