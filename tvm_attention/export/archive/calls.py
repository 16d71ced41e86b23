"""A call's NumPy arrays and options as an archive takes them."""

from __future__ import annotations

from typing import Any

import numpy as np

from .interface import CAUSAL, DTYPES, ArchiveError, Problem, Strides


def inputs_of(query: Any, key: Any, value: Any) -> tuple[Any, Any, Any]:
    """The three as arrays whose last axis is dense."""
    q, k, v = (_rows_dense(n, x) for n, x in (("query", query), ("key", key), ("value", value)))
    names = [x.dtype.name for x in (q, k, v)]
    if len(set(names)) > 1 or names[0] not in ("float32", "float16", "bfloat16"):
        raise ArchiveError(f"dtype: expected float32, float16 or bfloat16 for all, got {names}")
    if k.shape[:3] != v.shape[:3] or q.shape[0] != k.shape[0] or q.shape[3] != k.shape[3]:
        raise ArchiveError(f"shapes: expected fitting ones, got {q.shape}, {k.shape} and {v.shape}")
    return q, k, v


def _rows_dense(name: str, array: Any) -> Any:
    array = np.asarray(array)
    if array.ndim != 4:
        raise ArchiveError(f"{name}: expected (batch, heads, rows, dim), got shape {array.shape}")
    dense = array.shape[3] <= 1 or array.strides[3] == array.itemsize
    aligned = all(s % array.itemsize == 0 for s in array.strides) and array.flags.aligned
    return array if dense and aligned else np.ascontiguousarray(array)


def strides_of(array: Any) -> Strides:
    return Strides(*(s // array.itemsize for s in array.strides[:3]))


def set_options(
    problem: Problem,
    query_shape: tuple[int, ...],
    keys: int,
    *,
    causal: str | None = None,
    scale: float = 0.0,
    softcap: float = 0.0,
    window: tuple[int, int] | None = None,
    mask: Any = None,
    alibi_slopes: Any = None,
    sinks: Any = None,
    kv_lengths: Any = None,
) -> dict[str, Any]:
    """Puts the options into a problem; the arrays among them, as the archive reads them."""
    if causal not in CAUSAL:
        raise ArchiveError(f"causal: expected one of {list(CAUSAL)}, got {causal!r}")
    batch, heads, rows, _ = query_shape
    problem.causal, problem.scale, problem.softcap = CAUSAL[causal], scale, softcap
    if window is not None:
        problem.windowed, problem.window_left, problem.window_right = 1, *window
    arrays: dict[str, Any] = {}
    if mask is not None:
        arrays["mask"] = mask = np.broadcast_to(np.asarray(mask), (batch, heads, rows, keys))
        problem.mask_dtype = DTYPES.get(mask.dtype.name, -1)
        problem.mask_strides = tuple(s // mask.itemsize for s in mask.strides)
    for name, given, dtype, shape in (
        ("alibi_slopes", alibi_slopes, np.float32, (batch, heads)),
        ("sinks", sinks, np.float32, (heads,)),
        ("kv_lengths", kv_lengths, np.int32, (batch,)),
    ):
        if given is not None:
            arrays[name] = np.ascontiguousarray(np.broadcast_to(np.asarray(given, dtype), shape))
    problem.has_alibi = int("alibi_slopes" in arrays)
    problem.has_sinks = int("sinks" in arrays)
    problem.has_kv_lengths = int("kv_lengths" in arrays)
    return arrays
