"""Workloads drawn by seed that no suite has: what users run, and tuning has not seen."""

from __future__ import annotations

import math
from random import Random

from tvm_attention.suites import SUITES
from tvm_attention.work import flops, kv_bytes
from tvm_attention.workload import MEDIUM_KEYS, SHORT_KEYS, AttentionWorkload

# The classes of workload in the order in which they are drawn, over and over.
KINDS = (
    "short", "medium", "long", "short", "medium causal", "long causal", "decode", "short masked",
    "medium", "decode", "long", "short causal",
)  # fmt: skip
HEAD_DIMS = (32, 40, 48, 64, 64, 64, 72, 80, 88, 96, 112, 128, 128, 128, 160, 192, 256)
DECODE_DIMS = (64, 64, 80, 96, 112, 128, 128, 128, 256)
HEADS = (1, 2, 3, 4, 6, 8, 10, 12, 16, 20, 24, 32)
BATCHES = (1, 1, 1, 2, 3, 4, 8)
DTYPES = ("float32", "float32", "float32", "bfloat16", "float16")
LEAST_KEYS, MOST_KEYS = 16, 4096
LEAST_OPERATIONS, MOST_OPERATIONS = 1e6, 2e10
MOST_BYTES = 256 << 20  # of keys and values


def drawn_workloads(count: int, seed: int) -> list[AttentionWorkload]:
    """So many, all different, the same for the same seed."""
    known = {w for suite in SUITES.values() for w in suite.values()}
    rng = Random(seed)
    found: dict[AttentionWorkload, None] = {}
    while len(found) < count:
        kind = KINDS[len(found) % len(KINDS)]
        drawn = _decode(rng) if kind == "decode" else _prefill(rng, *kind.split())
        if drawn not in known and _is_bounded(drawn):
            found[drawn] = None
    return list(found)


def _is_bounded(w: AttentionWorkload) -> bool:
    """What takes seconds is not drawn, nor what is all overhead."""
    return LEAST_OPERATIONS <= flops(w) <= MOST_OPERATIONS and kv_bytes(w) <= MOST_BYTES


def _prefill(rng: Random, length_class: str, option: str = "") -> AttentionWorkload:
    """Lengths of queries and keys differ once in three times."""
    low, high = {
        "short": (LEAST_KEYS, SHORT_KEYS),
        "medium": (SHORT_KEYS + 1, MEDIUM_KEYS),
        "long": (MEDIUM_KEYS + 1, MOST_KEYS),
    }[length_class]
    keys = _between(rng, low, high)
    other = option != "causal" and rng.random() < 1 / 3
    queries = _between(rng, LEAST_KEYS, MOST_KEYS) if other else keys
    return AttentionWorkload(
        batch=rng.choice(BATCHES),
        query_heads=rng.choice(HEADS),
        query_length=queries,
        key_length=keys,
        head_dim=rng.choice(HEAD_DIMS),
        dtype=rng.choice(DTYPES),
        causal="top_left" if option == "causal" else None,
        mask="bool" if option == "masked" else None,
        mask_dense=option == "masked",
    )


def _decode(rng: Random) -> AttentionWorkload:
    kv_heads = rng.choice((1, 2, 4, 8, 16, 32))
    return AttentionWorkload(
        batch=rng.choice((1, 1, 1, 2, 4)),
        query_heads=kv_heads * rng.choice((1, 1, 2, 4, 4, 8)),
        kv_heads=kv_heads,
        query_length=1,
        key_length=_between(rng, 100, 20000),
        head_dim=rng.choice(DECODE_DIMS),
        dtype=rng.choice(DTYPES),
    )


def _between(rng: Random, low: int, high: int) -> int:
    """Uniform in the logarithm."""
    return min(high, round(math.exp(rng.uniform(math.log(low), math.log(high)))))
