"""Whether a workload's arrays fit into this machine's memory, asked before they are made."""

from __future__ import annotations

import psutil

from tvm_attention.errors import InvalidValueError
from tvm_attention.workload import AttentionWorkload


def workload_bytes(workload: AttentionWorkload) -> int:
    """Bytes of query, key, value and result in float32, in which random inputs are drawn."""
    w = workload
    assert w.kv_heads is not None
    assert w.value_dim is not None
    rows = w.query_heads * w.query_length + w.kv_heads * w.key_length
    return 4 * w.batch * rows * (w.head_dim + w.value_dim)


def require_memory(workload: AttentionWorkload) -> None:
    """Raises InvalidValueError for a workload whose arrays are larger than what memory is free."""
    needed, free = workload_bytes(workload), psutil.virtual_memory().available
    if needed > free:
        raise InvalidValueError(
            f"workload: expected one whose query, key, value and result fit into the "
            f"{free / 2**30:.1f} GiB of memory that are free, got {needed / 2**30:.4g} GiB; "
            f"choose a smaller batch, fewer heads or shorter lengths"
        )
