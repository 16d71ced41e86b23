"""Whether a workload's arrays fit into a machine's memory, asked before they are made."""

from __future__ import annotations

import psutil

from tvm_attention.errors import InvalidValueError
from tvm_attention.workload import AttentionWorkload


def workload_bytes(workload: AttentionWorkload) -> int:
    """Bytes of query, key, value and result in float32, in which random inputs are drawn; keys and values
    that are stored in pages or as int8 are there twice."""
    w = workload
    assert w.kv_heads is not None
    assert w.value_dim is not None
    columns = w.key_length if w.output == "weights" else w.value_dim
    copies = 2 if w.paged or w.kv_dtype is not None else 1
    queries = w.query_heads * w.query_length * (w.head_dim + columns)
    keys = w.kv_heads * w.key_length * (w.head_dim + w.value_dim)
    return 4 * w.batch * (queries + copies * keys)


def require_memory(workload: AttentionWorkload, free: int | None = None) -> None:
    """Raises InvalidValueError for a workload whose arrays are larger than what memory is free: ``free``
    bytes, those of this machine by default."""
    free = psutil.virtual_memory().available if free is None else free
    needed = workload_bytes(workload)
    if needed > free:
        raise InvalidValueError(
            f"workload: expected one whose query, key, value and result fit into the "
            f"{free / 2**30:.1f} GiB of memory that are free, got {needed / 2**30:.4g} GiB; "
            f"choose a smaller batch, fewer heads or shorter lengths"
        )
