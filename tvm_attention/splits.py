"""Into how many runs a decoding kernel splits the keys of a call."""

from __future__ import annotations

from tvm_attention.operands import Geometry
from tvm_attention.workload import AttentionWorkload

_LEAST_KEYS = 128  # fewer keys than this are not worth a split of their own
_SCORES = 1 << 13  # scores of a split at most: they stay in L1 together with their weights
_MOST_KEYS = 1 << 11  # keys of a split at most: K and V of a split meet in L2


def most_rows(workload: AttentionWorkload) -> int:
    """Query rows a key-value head that a decoding kernel of this workload serves at most."""
    return int(workload.length_class.removeprefix("decode-r"))


def splits(workload: AttentionWorkload, sizes: Geometry, threads: int) -> int:
    """Runs of keys that split-KV computes apart: so many that every thread gets the same number of
    tasks, and that a task's scores stay in cache."""
    return split_count(sizes.batch * sizes.kv_heads, sizes.key_length, most_rows(workload), threads)


def split_count(tasks: int, keys: int, rows: int, threads: int) -> int:
    """The same of ``tasks`` key-value heads of the batch and a kernel for ``rows`` query rows."""
    most = max(1, keys // _LEAST_KEYS)
    least = min(most, -(-keys // min(_MOST_KEYS, _SCORES // rows)))
    for count in range(least, min(most, least + threads) + 1):
        if tasks * count % threads == 0 or tasks * count >= 8 * threads:
            return count
    return least if tasks >= threads else most if most < threads else least
