"""How far a result is from the float64 reference, also for problems too large to compute whole."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from tvm_attention import reference
from tvm_attention.errors import InvalidValueError
from tvm_attention.workload import AttentionWorkload

# float32 results are held to this many roundings (2**-24) of the values' range.
FLOAT32_ROUNDINGS = 4.0
ROUNDING = 2.0**-24
# Half the distance from one to the next number: results are rounded to the dtype of the call.
ROUNDINGS = {"float32": ROUNDING, "float16": 2.0**-11, "bfloat16": 2.0**-8}
# Scores up to which every row is compared; above it a random subset, first and last row included.
WHOLE_SCORES = 2_000_000
SAMPLED_HEADS = 8
SAMPLED_ROWS = 16

Place: TypeAlias = tuple[int, int, NDArray[np.intp]]


@dataclass(frozen=True, slots=True)
class Accuracy:
    """Largest absolute error found; ``allowed`` is 4 roundings of the values' range, ``largest`` the
    greatest magnitude that was expected."""

    max_error: float
    allowed: float
    rows: int  # query rows compared
    largest: float

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
    options: Mapping[str, Any] | None = None,
    seed: int = 0,
) -> Accuracy:
    """Compare a result (B, Hq, L, Ev) with the reference, a large one on a subset of its rows; for a
    workload whose output is "weights" it is (B, Hq, L, S), of range 1.

    ``options`` are those of :func:`tvm_attention.reference.attended`; the workload's causality alone
    by default.

    Raises InvalidValueError when the result has another shape.
    """
    return Expectation.of(query, key, value, workload, options=options, seed=seed).accuracy(result)


@dataclass(frozen=True, slots=True, eq=False)
class Expectation:
    """What the reference has for a call, to compare several results with: ``shape`` of a result,
    ``spread`` of the values' range, and (batch, query head, rows) with the numbers expected there."""

    shape: tuple[int, ...]
    dtype: str
    spread: float
    places: tuple[tuple[Place, NDArray[np.float64]], ...]

    @classmethod
    def of(
        cls,
        query: NDArray[np.floating],
        key: NDArray[np.floating],
        value: NDArray[np.floating],
        workload: AttentionWorkload,
        *,
        options: Mapping[str, Any] | None = None,
        seed: int = 0,
    ) -> Expectation:
        """Arguments as for :func:`compare`."""
        weights = workload.output == "weights"
        expected = _expected(query, key, value, workload, options, seed)
        return cls(
            shape=(*query.shape[:3], key.shape[2] if weights else value.shape[3]),
            dtype=workload.dtype,
            spread=1.0 if weights else float(np.ptp(value.astype(np.float32))),
            places=tuple((p, (e.weights if weights else e.out)[0, 0]) for p, e in expected),
        )

    def accuracy(self, result: NDArray[np.floating]) -> Accuracy:
        """Of a result; a NaN anywhere in it is an error of NaN. Raises InvalidValueError when it has
        another shape."""
        if result.shape != self.shape:
            raise InvalidValueError(f"result: expected shape {self.shape}, got {result.shape}")
        error, largest = 0.0, 0.0
        for place, expected in self.places:
            error = _worse(error, result[place], expected)
            largest = max(largest, float(np.max(np.abs(expected), initial=0.0)))
        if np.isnan(result).any():
            error = math.nan
        allowed = FLOAT32_ROUNDINGS * ROUNDINGS[self.dtype] * self.spread
        return Accuracy(error, allowed, sum(len(p[2]) for p, _ in self.places), largest)


def compare_lse(
    lse: NDArray[np.float32],
    query: NDArray[np.floating],
    key: NDArray[np.floating],
    value: NDArray[np.floating],
    workload: AttentionWorkload,
    *,
    options: Mapping[str, Any] | None = None,
    seed: int = 0,
) -> Accuracy:
    """Compare a log-sum-exp (B, Hq, L), of the same rows. ``allowed`` is 4 float32 roundings of the
    largest of them, of 1 at least."""
    error, rows, size = 0.0, 0, 1.0
    for place, expected in _expected(query, key, value, workload, options, seed):
        sums = expected.lse[0, 0]
        error = _worse(error, lse[place], sums)
        rows += len(place[2])
        size = max(size, float(np.abs(sums).max(where=np.isfinite(sums), initial=0.0)))
        if math.isnan(error):
            break
    return Accuracy(error, FLOAT32_ROUNDINGS * ROUNDING * size, rows, size)


def _expected(
    query: NDArray[Any],
    key: NDArray[Any],
    value: NDArray[Any],
    workload: AttentionWorkload,
    options: Mapping[str, Any] | None,
    seed: int,
) -> Iterator[tuple[Place, reference.Attended]]:
    """(batch, query head, rows) that are compared, and what the reference has there."""
    given = {"causal": workload.causal} if options is None else options
    for batch, head, chosen in _chosen_rows(workload, seed):
        kv_head = head // workload.group
        arrays = (query[batch, head], key[batch, kv_head], value[batch, kv_head])
        one = _one_head(given, workload, batch, head)
        found = reference.attended(*(x[None, None] for x in arrays), rows=chosen, **one)
        yield (batch, head, chosen), found


def _worse(error: float, got: NDArray[Any], expected: NDArray[np.float64]) -> float:
    """The larger of an error and the largest one here, NaN if there is any."""
    numbers = got.astype(np.float64)
    with np.errstate(invalid="ignore"):
        apart = np.where(numbers == expected, 0.0, np.abs(numbers - expected))  # infinities, too
    worst = float(np.max(apart))
    return worst if math.isnan(worst) or worst > error else error


def _chosen_rows(workload: AttentionWorkload, seed: int) -> Iterator[Place]:
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


def _one_head(
    options: Mapping[str, Any], w: AttentionWorkload, batch: int, head: int
) -> dict[str, Any]:
    """The options as they are for one query head of one batch element."""
    one = dict(options)
    if one.get("mask") is not None:
        mask = np.asarray(one["mask"])
        whole = (w.batch, w.query_heads, *np.broadcast_shapes(mask.shape, (1, 1))[-2:])
        one["mask"] = np.broadcast_to(mask, whole)[batch, head][None, None]
    if one.get("alibi_slopes") is not None:
        slopes = np.broadcast_to(one["alibi_slopes"], (w.batch, w.query_heads))
        one["alibi_slopes"] = slopes[batch : batch + 1, head : head + 1]
    if one.get("sinks") is not None:
        one["sinks"] = np.asarray(one["sinks"])[head : head + 1]
    if one.get("kv_lengths") is not None:
        one["kv_lengths"] = np.asarray(one["kv_lengths"])[batch : batch + 1]
    return one
