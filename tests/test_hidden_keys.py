"""What a query may not see reaches nothing, whatever it holds; what it may see does. Every variant."""

from __future__ import annotations

import numpy as np
import pytest
from attention_variants import SCHEDULES, attend, check
from attention_ways import HIDING, LENGTHS, ROWS_HIDDEN, call_of, seen

BAD = (np.nan, np.inf, -np.inf)


@pytest.mark.parametrize("way", HIDING)
@pytest.mark.parametrize("name", SCHEDULES)
def test_keys_that_nobody_sees_may_hold_anything(name: str, way: str) -> None:
    (q, k, v), options = call_of(way, name)
    hidden = ~seen(q, k, v, **options).any(axis=2)
    assert hidden.any() or way == "future"
    clean, clean_lse = check(name, q, k, v, **options)
    for bad in BAD:
        keys, values = k.copy(), v.copy()
        keys[hidden], values[hidden] = bad, bad
        found, lse = check(name, q, keys, values, finite=(q, k, v), **options)
        assert np.isfinite(found).all()
        # Weights are the same; a sum with a NaN is made again, in another order.
        np.testing.assert_array_equal(lse, clean_lse)
        if name == "weights":
            np.testing.assert_array_equal(found, clean)


@pytest.mark.parametrize("way", ["bool", "float", "own type", "keys"])
@pytest.mark.parametrize("name", SCHEDULES)
def test_a_hidden_last_key_is_not_felt_however_high_its_score(name: str, way: str) -> None:
    """Register tiles round up to more keys, which are that key again: a row's maximum must not be theirs."""
    for keys in (211, 209, 194):
        (q, k, v), options = call_of(way, name, keys=keys)
        assert not seen(q, k, v, **options)[..., -1].any()
        for high in (1e4, -1e4):
            spoiled = k.copy()
            spoiled[:, :, -1, 0] = high
            check(name, q, spoiled, v, finite=(q, k, v), **options)


@pytest.mark.parametrize("way", HIDING)
@pytest.mark.parametrize("name", SCHEDULES)
def test_a_bad_key_reaches_exactly_the_rows_that_see_it(name: str, way: str) -> None:
    (q, k, v), options = call_of(way, name)
    rows_seeing = seen(q, k, v, **options)
    some = rows_seeing.any(axis=2) & ~rows_seeing.all(axis=2)
    if way in ("keys", "lengths"):
        some = rows_seeing.any(axis=2)
    batch, head, key = np.argwhere(some)[len(np.argwhere(some)) // 2]
    for bad in BAD:
        for spoiled in ("key", "value"):
            keys, values = k.copy(), v.copy()
            if spoiled == "key":
                keys[batch, head, key, 0] = bad
            else:
                values[batch, head, key, 5:] = bad
            found, _ = check(name, q, keys, values, finite=(q, k, v), **options)
            if name == "weights" and spoiled == "value":
                assert np.isfinite(found).all()
                continue
            group = q.shape[1] // k.shape[1]
            of_head = found[batch, head * group : (head + 1) * group]
            bad_rows = ~np.isfinite(of_head.astype(np.float32)).all(axis=-1).reshape(-1)
            reached = rows_seeing[batch, head, :, key]
            assert not bad_rows[~reached].any()
            if spoiled == "value" or np.isnan(bad):
                np.testing.assert_array_equal(bad_rows, reached)


@pytest.mark.parametrize("way", HIDING)
@pytest.mark.parametrize("name", SCHEDULES)
def test_a_nan_in_a_query_reaches_its_row_alone(name: str, way: str) -> None:
    (q, k, v), options = call_of(way, name)
    clean, clean_lse = attend(name, q, k, v, **options)
    row = q.shape[2] - 1
    spoiled = q.copy()
    spoiled[1, 1, row, 7] = np.nan
    found, lse = attend(name, spoiled, k, v, **options)
    others = np.ones(q.shape[:3], bool)
    others[1, 1, row] = False
    rows = clean[1, 1, row].astype(np.float32) != 0  # a masked weight is zero over NaN
    assert np.isnan(found[1, 1, row].astype(np.float32)[rows]).all()
    assert rows.any()
    assert name == "weights" or np.isnan(lse[1, 1, row])
    # A sum with a NaN is made again, in another order, and rounded to the dtype.
    near = {"own type": 2e-3, "everything": 2e-2}.get(way, 2e-6)
    np.testing.assert_allclose(
        found[others].astype(np.float32),
        clean[others].astype(np.float32),
        rtol=0,
        atol=0.0 if name == "weights" else near,
    )
    np.testing.assert_array_equal(lse[others], clean_lse[others])


@pytest.mark.parametrize("way", ["bool", "float", "own type", "everything"])
@pytest.mark.parametrize("name", SCHEDULES)
def test_rows_that_see_nothing(name: str, way: str) -> None:
    (q, k, v), options = call_of(way, name)
    q[0, 1, 1] = np.nan  # of a row that sees nothing
    k[:, :, 0], v[:, :, 0] = np.nan, np.inf
    clean = call_of(way, name)[0]
    found, lse = check(name, q, k, v, finite=clean, **options)
    assert not found[:, :, ROWS_HIDDEN].any()
    if name != "weights":
        empty = options.get("sinks")
        expected = np.full(lse[:, :, ROWS_HIDDEN].shape, -np.inf, np.float32)
        expected = expected if empty is None else expected.copy()
        if empty is not None:
            expected[...] = empty[:, None]
        np.testing.assert_allclose(lse[:, :, ROWS_HIDDEN], expected, rtol=3e-7)


@pytest.mark.parametrize("lengths", [(0, 211), (211, 0), (0, 0), (1, 210), LENGTHS.tolist()])
@pytest.mark.parametrize("name", SCHEDULES)
def test_lengths_of_keys(name: str, lengths: list[int]) -> None:
    (q, k, v), _ = call_of("lengths", name)
    clean = k.copy(), v.copy()
    for b, length in enumerate(lengths):
        k[b, :, length:], v[b, :, length:] = np.nan, np.inf
    found, lse = check(name, q, k, v, finite=(q, *clean), kv_lengths=lengths)
    for b, length in enumerate(lengths):
        if length == 0:
            assert not found[b].any()
            assert name == "weights" or np.isneginf(lse[b]).all()


@pytest.mark.parametrize("causal", ["top_left", "bottom_right"])
@pytest.mark.parametrize("name", SCHEDULES)
def test_rows_before_all_keys_see_nothing(name: str, causal: str) -> None:
    """More rows than keys."""
    for keys in (1, 2, 3):
        (q, k, v), _ = call_of("future", name, keys=keys)
        found, lse = check(name, q, k, v, causal=causal)
        blind = q.shape[2] - keys if causal == "bottom_right" else 0
        assert not found[:, :, :blind].any()
        if name != "weights":
            assert np.isneginf(lse[:, :, :blind]).all()
            assert np.isfinite(lse[:, :, blind:]).all()
