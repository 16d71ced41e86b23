"""Every option in every variant, at the edges of its range and of the tiles."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest
from attention_bounds import assert_near
from attention_variants import (
    DECODE_ROWS,
    KEY_BLOCK,
    SCHEDULES,
    attend,
    bounds,
    check,
    lanes_of,
    of_dtype,
    tensors,
)
from attention_ways import HIDING, ROWS_HIDDEN, call_of, sinks, slopes

from tvm_attention import reference
from tvm_attention.target import detect_target

CAUSAL = (None, "top_left", "bottom_right")


@pytest.mark.parametrize("way", HIDING)
@pytest.mark.parametrize("name", SCHEDULES)
def test_lengths_around_every_tile(name: str, way: str) -> None:
    lanes = lanes_of(detect_target())
    blocks = {6, 2 * lanes, KEY_BLOCK, 2 * KEY_BLOCK, 256}
    keys = sorted({1} | {t + step for t in blocks for step in (-1, 0, 1)})
    rows = [lanes - 1, lanes, lanes + 1, 2 * lanes - 1, 2 * lanes, 2 * lanes + 1]
    if name == "split_kv":
        rows = [DECODE_ROWS, DECODE_ROWS - 1]
    for n, columns in enumerate(keys):
        (q, k, v), options = call_of(way, name, rows=rows[n % len(rows)], keys=columns)
        check(name, q, k, v, threads=1 + n % 3, **options)


@pytest.mark.parametrize("way", ["bool", "future", "window", "everything"])
def test_groups_in_decoding(way: str) -> None:
    for group, rows in ((4, 1), (2, 2), (3, 1), (2, 4)):
        (q, k, v), options = call_of(way, "split_kv", group=group, rows=rows)
        found, _ = check("split_kv", q, k, v, **options)
        assert found.any() or rows <= ROWS_HIDDEN.stop  # whole masks hide everything from these


@pytest.mark.parametrize("name", SCHEDULES)
def test_every_head_of_a_group_has_options_of_its_own(name: str) -> None:
    for group, rows in ((4, 1), (2, 2), (3, 1)) if name == "split_kv" else ((3, 5),):
        q, k, v = tensors(name, group=group, rows=rows)
        heads = 2 * group
        seen = np.random.default_rng(8).random((2, heads, rows, 211)) < 0.7
        assert seen.any(axis=-1).all()
        own: dict[str, Any] = {"mask": seen, "alibi_slopes": slopes(q), "sinks": 3.0 + sinks(q)}
        if name in ("running", "matrix"):
            del own["sinks"]
        for option, value in own.items():
            check(name, q, k, v, **{option: value})


@pytest.mark.parametrize(
    "window",
    [(0, 0), (3, 0), (0, 3), (5, -1), (-1, 5), (40, 70), (1000, 1000), (0, 2**40), (None, 2)],
    ids=str,
)
@pytest.mark.parametrize("name", SCHEDULES)
def test_windows(name: str, window: Any) -> None:
    rows = DECODE_ROWS if name == "split_kv" else 50
    for keys in (211, rows, 33, 1):
        q, k, v = tensors(name, keys=keys, rows=rows)
        check(name, q, k, v, window=window)


@pytest.mark.parametrize("causal", CAUSAL[1:])
@pytest.mark.parametrize("name", SCHEDULES)
def test_windows_under_causality(name: str, causal: str) -> None:
    rows = DECODE_ROWS if name == "split_kv" else 50
    for window, keys in product([(0, 0), (7, -1), (40, 2), (1000, -1)], (211, 33, 1)):
        q, k, v = tensors(name, keys=keys, rows=rows)
        check(name, q, k, v, window=window, causal=causal)


LOWEST = {"float32": np.finfo(np.float32).min, "float16": -65504.0}


@pytest.mark.parametrize("dtype", LOWEST)
@pytest.mark.parametrize("name", SCHEDULES)
def test_masks_of_the_lowest_number(name: str, dtype: str) -> None:
    """It hides a key only where the row sees another; rows that see nothing else average."""
    q, k, v = tensors(name, dtype=dtype)
    mask = np.zeros((2, 1, q.shape[2], 211), np.float32)
    mask[:, :, :, :120] = LOWEST[dtype]  # leading blocks
    mask[0, :, 1] = LOWEST[dtype]
    mask[1, :, 2] = LOWEST[dtype]
    mask[1, :, 2, 100:] = -np.inf
    found, _ = check(name, q, k, v, mask=of_dtype(mask, dtype))
    # The bound of so large a mask allows anything. Rows that see other keys are as if it hid these.
    others = [n for n in range(q.shape[2]) if n not in (1, 2)]
    hiding = reference.attended(q, k, v, mask=np.where(mask == LOWEST[dtype], -np.inf, mask))
    expected = hiding.weights if name == "weights" else hiding.out
    size, span = bounds(q, k, v)
    assert_near(
        found[:, :, others], expected[:, :, others], dtype, size=size, what=name,
        span=1.0 if name == "weights" else span,
    )  # fmt: skip
    if dtype == "float32" and name != "weights":
        group = q.shape[1] // k.shape[1]
        for b, row, seen in ((0, 1, 211), (1, 2, 100)):
            mean = np.repeat(v[b, :, :seen].mean(axis=1, dtype=np.float64), group, axis=0)
            np.testing.assert_allclose(found[b, :, row], mean, rtol=0, atol=2e-6)


@pytest.mark.parametrize("per_key", [False, True])
@pytest.mark.parametrize("name", SCHEDULES)
def test_the_lowest_mask_hides_no_key_of_a_very_low_score(name: str, per_key: bool) -> None:
    """Their sum is beyond float32; a row that sees no other key is that key's value all the same."""
    for keys in (211, 1):
        q, k, v = tensors(name, keys=keys)
        q[...], k[...] = 0.0, 0.0
        q[..., 0], k[..., 0] = 1e16, -1e20
        mask = np.full((2, 1, 1 if per_key else q.shape[2], keys), -np.inf, np.float32)
        mask[..., keys // 2] = LOWEST["float32"]
        found, _ = attend(name, q, k, v, mask=mask)
        # Not through a bound: with scores of this size it would allow anything.
        expected = reference.attended(q, k, v, mask=mask)
        weights = name == "weights"
        np.testing.assert_allclose(
            found, expected.weights if weights else expected.out, rtol=2.0**-22, atol=0
        )


@pytest.mark.parametrize("way", ["bool", "float", "own type"])
@pytest.mark.parametrize("name", SCHEDULES)
def test_huge_scores_with_masks(name: str, way: str) -> None:
    (q, k, v), options = call_of(way, name)
    largest = 1e4 if q.dtype == np.float16 else 1e30
    q[...], k[...] = 1.0, 0.0
    for sign in (1, -1):
        k[..., 0] = sign * np.linspace(-largest, largest, 211)
        found, _ = check_one_key(name, q, k, v, options)
        assert np.isfinite(found).all()


def check_one_key(name: str, q: Any, k: Any, v: Any, options: Any) -> Any:
    """Scores are so far apart that each row is the value of its best key, whatever their rounding."""
    zero_bound = (np.zeros_like(q), np.zeros_like(k), v)
    return check(name, q, k, v, finite=zero_bound, lse=False, **options)


@pytest.mark.parametrize("scale", [0.0, -0.25, -1e-30, 3.0])
@pytest.mark.parametrize("way", ["future", "bool", "everything"])
@pytest.mark.parametrize("name", SCHEDULES)
def test_scales(name: str, way: str, scale: float) -> None:
    (q, k, v), options = call_of(way, name)
    check(name, q, k, v, scale=scale, **options)


@pytest.mark.parametrize("softcap", [2.0**-126, 1e-3, 0.5, 30.0, 1e4, 1e38])
@pytest.mark.parametrize("name", SCHEDULES)
def test_softcaps(name: str, softcap: float) -> None:
    q, k, v = tensors(name)
    check(name, q, k, v, softcap=softcap, alibi_slopes=np.zeros(q.shape[1], np.float32))
    check(name, 40 * q, k, v, softcap=softcap, alibi_slopes=np.zeros(q.shape[1], np.float32))


@pytest.mark.parametrize("causal", CAUSAL)
@pytest.mark.parametrize("name", SCHEDULES)
def test_alibi(name: str, causal: str | None) -> None:
    for keys in (211, 20, 2):
        q, k, v = tensors(name, keys=keys)
        of_batches = np.random.default_rng(3).uniform(-0.1, 1.0, q.shape[:2]).astype(np.float32)
        for given in (slopes(q), of_batches):
            options: dict[str, Any] = {"softcap": 20.0} if causal is None else {}
            check(name, q, k, v, alibi_slopes=given, causal=causal, **options)


@pytest.mark.parametrize("name", [n for n in SCHEDULES if n not in ("running", "matrix")])
def test_sinks(name: str) -> None:
    (q, k, v), options = call_of("keys", name)
    options["mask"] = options["mask"].copy()
    options["mask"][1] = False
    none, far = np.full(q.shape[1], -np.inf), np.full(q.shape[1], 1e30)
    for given in (sinks(q), none, -far, far, np.where(np.arange(q.shape[1]) % 2, none, 0.0)):
        found, _ = check(name, q, k, v, sinks=given.astype(np.float32), mask=options["mask"])
        assert not found[1].any()
        assert found[0].any() or given is far
