"""Combinations of options that hide keys or change scores, each one kernel of every variant."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from attention_variants import Array, of_dtype, tensors

from tvm_attention import reference

Options = dict[str, Any]

ROWS_HIDDEN = slice(0, 2)  # rows of a whole mask that see nothing
KEYS_HIDDEN = slice(0, 130)  # keys that no row sees: more than a block of them
LENGTHS = np.array([150, 37])


def shown(q: Array, k: Array) -> Array:
    """(batch, 1, rows, keys) of which the last three quarters are seen at random, by most rows."""
    seen = np.random.default_rng(5).random((q.shape[0], 1, q.shape[2], k.shape[2])) < 0.7
    seen[..., KEYS_HIDDEN] = False
    seen[..., -1] = False
    seen[:, :, ROWS_HIDDEN] = False
    return seen


def added(q: Array, k: Array) -> Array:
    bias = np.random.default_rng(6).standard_normal((q.shape[0], 1, q.shape[2], k.shape[2]))
    return np.where(shown(q, k), bias, -np.inf).astype(np.float32)


def of_keys(q: Array, k: Array) -> Array:
    return shown(q, k)[:, :, -1:]


def slopes(q: Array) -> Array:
    return np.linspace(0.01, 0.4, q.shape[1], dtype=np.float32)


def sinks(q: Array) -> Array:
    return np.linspace(-2.0, 3.0, q.shape[1], dtype=np.float32)


HIDING: dict[str, tuple[str, Callable[[Array, Array], Options]]] = {
    "bool": ("float32", lambda q, k: {"mask": shown(q, k)}),
    "keys": ("float32", lambda q, k: {"mask": of_keys(q, k), "sinks": sinks(q)}),
    "float": ("float32", lambda q, k: {"mask": added(q, k)}),
    "own type": ("float16", lambda q, k: {"mask": of_dtype(added(q, k), "float16")}),
    "future": ("float32", lambda q, k: {"causal": "bottom_right"}),
    "beyond the rows": ("float32", lambda q, k: {"causal": "top_left"}),
    "window": ("float32", lambda q, k: {"window": (5, 3)}),
    "causal window": ("float32", lambda q, k: {"window": (7, -1), "causal": "top_left"}),
    "lengths": ("float32", lambda q, k: {"kv_lengths": np.minimum(LENGTHS, k.shape[2])}),
    "everything": (
        "bfloat16",
        lambda q, k: {
            "mask": shown(q, k), "causal": "bottom_right", "window": (90, -1), "softcap": 3.0,
            "alibi_slopes": slopes(q), "sinks": sinks(q),
            "kv_lengths": np.array([k.shape[2], max(k.shape[2] - 30, 0)]),
        },
    ),
}  # fmt: skip


def call_of(way: str, name: str, **shape: Any) -> tuple[tuple[Array, Array, Array], Options]:
    """Query, key, value and options for a variant."""
    dtype, options = HIDING[way]
    q, k, v = tensors(name, dtype=dtype, **shape)
    chosen = options(q, k)
    if name == "running" and "mask" in chosen:  # it has masks or lengths but not both
        chosen.pop("kv_lengths", None)
    return (q, k, v), chosen


def seen(q: Array, k: Array, v: Array, **options: Any) -> Array:
    """(batch, key-value heads, rows of the group, keys): which keys a row may see."""
    zeros = (np.zeros_like(x) for x in (q, k, v))
    weights = reference.attended(*zeros, **options, scale=0.0).weights
    batch, heads, rows, keys = weights.shape
    return weights.reshape(batch, k.shape[1], heads // k.shape[1] * rows, keys) > 0
