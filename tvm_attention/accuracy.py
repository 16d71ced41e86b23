"""How far a result is from the float64 reference, also for problems too large to compute whole."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tvm_attention import reference
from tvm_attention.errors import InvalidValueError
from tvm_attention.workload import AttentionWorkload

# float32 results are held to this many roundings (2**-24) of the values' range.
FLOAT32_ROUNDINGS = 4.0
ROUNDING = 2.0**-24
# Scores up to which every row is compared; above it a random subset, first and last row included.
WHOLE_SCORES = 2_000_000
SAMPLED_HEADS = 8
SAMPLED_ROWS = 16


@dataclass(frozen=True, slots=True)
class Accuracy:
    """Largest absolute error found; ``allowed`` is 4 float32 roundings of the values' range."""

    max_error: float
    allowed: float
    rows: int  # query rows compared

    @property
    def roundings(self) -> float:
        """The error in float32 roundings of the values' range."""
        return self.max_error / self.allowed * FLOAT32_ROUNDINGS

    @property
    def holds(self) -> bool:
        """Whether the error is within the bound; never for a NaN."""
        return self.max_error <= self.allowed


def compare(
    result: NDArray[np.floating],
    query: NDArray[np.floating],
    key: NDArray[np.floating],
    value: NDArray[np.floating],
    workload: AttentionWorkload,
    *,
    seed: int = 0,
) -> Accuracy:
    """Compare a result (B, Hq, L, Ev) with the reference, a large one on a subset of its rows.

    Raises InvalidValueError when the result has another shape.
    """
    expected_shape = (*query.shape[:3], value.shape[3])
    if result.shape != expected_shape:
        raise InvalidValueError(f"result: expected shape {expected_shape}, got {result.shape}")
    error, rows = 0.0, 0
    for batch, head, chosen in _chosen_rows(workload, seed):
        expected = _rows(query, key, value, workload, batch, head, chosen)
        got = result[batch, head, chosen].astype(np.float64)
        worst = float(np.max(np.abs(got - expected)))
        error = worst if math.isnan(worst) or worst > error else error
        rows += len(chosen)
        if math.isnan(error):
            break
    return Accuracy(error, FLOAT32_ROUNDINGS * ROUNDING * float(np.ptp(value)), rows)


def _chosen_rows(
    workload: AttentionWorkload, seed: int
) -> Iterator[tuple[int, int, NDArray[np.intp]]]:
    w = workload
    pairs = w.batch * w.query_heads
    every = np.arange(w.query_length)
    if pairs * w.query_length * w.key_length <= WHOLE_SCORES:
        for pair in range(pairs):
            yield *divmod(pair, w.query_heads), every
        return
    rng = np.random.default_rng(seed)
    for pair in sorted(rng.choice(pairs, min(pairs, SAMPLED_HEADS), replace=False).tolist()):
        some = rng.choice(every, min(w.query_length, SAMPLED_ROWS), replace=False)
        yield *divmod(pair, w.query_heads), np.union1d(some, every[[0, -1]])


def _rows(
    query: NDArray[np.floating],
    key: NDArray[np.floating],
    value: NDArray[np.floating],
    workload: AttentionWorkload,
    batch: int,
    head: int,
    chosen: NDArray[np.intp],
) -> NDArray[np.float64]:
    """The chosen query rows' expected results, (len(chosen), Ev)."""
    w = workload
    q = query[batch, head, chosen]
    k, v = (x[batch, head // w.group] for x in (key, value))
    if w.causal is None:
        return _one_head(q, k, v)
    offset = 0 if w.causal == "top_left" else w.key_length - w.query_length
    expected = np.empty((len(chosen), v.shape[1]))
    for place, row in enumerate(chosen):
        seen = max(0, min(w.key_length, int(row) + 1 + offset))
        expected[place] = _one_head(q[place : place + 1], k[:seen], v[:seen])[0]
    return expected


def _one_head(
    query: NDArray[np.floating], key: NDArray[np.floating], value: NDArray[np.floating]
) -> NDArray[np.float64]:
    result = reference.attention(query[None, None], key[None, None], value[None, None])
    return np.asarray(result[0, 0])
