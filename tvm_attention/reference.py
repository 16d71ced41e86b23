"""The same mathematics in NumPy float64: what tests, tuning and the benchmark compare with."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tvm_attention.workload import default_scale

Float64 = NDArray[np.float64]


class Attended(NamedTuple):
    """Result (B, Hq, L, Ev), log-sum-exp (B, Hq, L) and softmax rows (B, Hq, L, S)."""

    out: Float64
    lse: Float64
    weights: Float64


def attention(
    query: ArrayLike,
    key: ArrayLike,
    value: ArrayLike,
    *,
    return_lse: bool = False,
    return_weights: bool = False,
    **options: Any,
) -> Any:
    """softmax(scale * query key^T) value in float64, with the options of :func:`attended`.

    The result alone, or (result[, log-sum-exp][, weights]) of what is asked for.
    """
    found = attended(query, key, value, **options)
    wanted = (True, return_lse, return_weights)
    parts = tuple(part for part, want in zip(found, wanted, strict=True) if want)
    return parts if len(parts) > 1 else found.out


def attended(
    query: ArrayLike,
    key: ArrayLike,
    value: ArrayLike,
    *,
    mask: ArrayLike | None = None,
    causal: str | None = None,
    window: tuple[int | None, int | None] | None = None,
    softcap: float | None = None,
    alibi_slopes: ArrayLike | None = None,
    sinks: ArrayLike | None = None,
    kv_lengths: ArrayLike | None = None,
    scale: float | None = None,
    rows: NDArray[np.intp] | None = None,
) -> Attended:
    """Attention of query (B, Hq, L, E), key (B, Hkv, S, E), value (B, Hkv, S, Ev), any float dtype.

    Query head h uses key-value head h // (Hq / Hkv). The options mean what they mean to
    ``tvm_attention.attention`` and are not checked. What a masked key and its value hold, NaN
    included, reaches nothing; a row that sees no key gives zeros. ``rows``: only these query rows are
    computed; the options are those of all.
    """
    q, k, v = (np.asarray(x, dtype=np.float64) for x in (query, key, value))
    if q.shape[1] > k.shape[1]:
        k, v = (np.repeat(x, q.shape[1] // k.shape[1], axis=1) for x in (k, v))
    shape = (*q.shape[:3], k.shape[2])
    positions = _positions(shape, causal, kv_lengths)
    if rows is not None:
        q, positions, shape = q[:, :, rows], positions[..., rows], (*shape[:2], len(rows), shape[3])
        mask = _mask_rows(mask, rows)
    visible = _visible(shape, positions, causal, window, kv_lengths)
    with np.errstate(invalid="ignore", over="ignore"):
        scores = q @ np.swapaxes(k, -1, -2)
        scores *= default_scale(max(q.shape[-1], 1)) if scale is None else scale
        if softcap is not None:
            scores = softcap * np.tanh(scores / softcap)
        if alibi_slopes is not None:
            slopes = np.broadcast_to(np.asarray(alibi_slopes, np.float64), shape[:2])
            scores -= slopes[..., None, None] * np.abs(positions[..., None] - np.arange(shape[3]))
        if mask is not None:
            scores, visible = _masked(scores, visible, np.asarray(mask))
        return _softmax(scores, np.broadcast_to(visible, shape), v, sinks)


def visible(
    shape: tuple[int, int, int, int],
    *,
    causal: str | None = None,
    window: tuple[int | None, int | None] | None = None,
    kv_lengths: ArrayLike | None = None,
) -> NDArray[np.bool_]:
    """Where a query may attend by its place alone, for scores of a shape (B, Hq, L, S), to which the
    result broadcasts."""
    positions = _positions(shape, causal, kv_lengths)
    return _visible(shape, positions, causal, window, kv_lengths)


def _mask_rows(mask: ArrayLike | None, rows: NDArray[np.intp]) -> NDArray[Any] | None:
    if mask is None:
        return None
    array = np.asarray(mask)
    return array if array.ndim < 2 or array.shape[-2] == 1 else array[..., rows, :]


def _positions(
    shape: tuple[int, ...], causal: str | None, kv_lengths: ArrayLike | None
) -> NDArray[np.int64]:
    """Among the keys, the place of each query row, (B or 1, 1, L)."""
    rows, columns = shape[2:]
    lengths = np.asarray([columns] if kv_lengths is None else kv_lengths, dtype=np.int64)
    offsets = np.zeros_like(lengths) if causal == "top_left" else lengths - rows
    return offsets[:, None, None] + np.arange(rows)


def _visible(
    shape: tuple[int, ...],
    positions: NDArray[np.int64],
    causal: str | None,
    window: tuple[int | None, int | None] | None,
    kv_lengths: ArrayLike | None,
) -> NDArray[np.bool_]:
    """Where a row may attend by its place alone; broadcasts to (B, Hq, L, S)."""
    keys = np.arange(shape[3])
    visible = np.ones((1, 1, 1, shape[3]), dtype=bool)
    if kv_lengths is not None:
        visible = visible & (keys < np.asarray(kv_lengths)[:, None, None, None])
    if causal is not None:
        visible = visible & (keys <= positions[..., None])
    left, right = (-1, -1) if window is None else window
    if left is not None and left >= 0:
        visible = visible & (keys >= positions[..., None] - left)
    if right is not None and right >= 0:
        visible = visible & (keys <= positions[..., None] + right)
    return visible


def _masked(
    scores: Float64, visible: NDArray[np.bool_], mask: NDArray[Any]
) -> tuple[Float64, NDArray[np.bool_]]:
    if mask.dtype == np.bool_:
        return scores, visible & mask
    added = mask.astype(np.float64)
    return scores + added, visible & ~np.isneginf(added)


def _softmax(
    scores: Float64, visible: NDArray[np.bool_], value: Float64, sinks: ArrayLike | None
) -> Attended:
    scores = np.where(visible, scores, -np.inf)
    top = scores.max(axis=-1, keepdims=True, initial=-np.inf)
    sink = np.full((scores.shape[1], 1, 1), -np.inf)
    if sinks is not None:
        sink = np.asarray(sinks, dtype=np.float64)[:, None, None]
        top = np.maximum(top, sink)
    safe = np.where(np.isneginf(top), 0.0, top)
    weights = np.where(visible, np.exp(scores - safe), 0.0)
    total = weights.sum(axis=-1, keepdims=True) + np.exp(sink - safe)
    weights /= np.where(total == 0, 1.0, total)
    with np.errstate(divide="ignore"):
        lse = (safe + np.log(total))[..., 0]
    return Attended(_product(weights, visible, value), lse, weights)


def _product(weights: Float64, visible: NDArray[np.bool_], value: Float64) -> Float64:
    """weights value, in which 0 times NaN is 0 where the 0 stands for a masked key."""
    spoiled = np.flatnonzero(~np.isfinite(value).all(axis=(0, 1, 3)))
    sound = value.copy()
    sound[:, :, spoiled] = 0.0
    out: Float64 = weights @ sound
    for j in spoiled.tolist():
        one = slice(j, j + 1)
        out += np.where(visible[..., one], weights[..., one] * value[:, :, one], 0.0)
    return out
