"""What a call of exactly a workload passes to its kernel: lengths, strides of dense tensors, options."""

from __future__ import annotations

from tvm_attention.operands import Geometry
from tvm_attention.splits import splits
from tvm_attention.workload import UNBOUNDED, AttentionWorkload

_ALL = 1 << 30  # keys of a window without an end
_PAGE_SHIFT = 4


def scalars(w: AttentionWorkload, threads: int) -> dict[str, int]:
    """Lengths and options by the names of :mod:`tvm_attention.arguments`. ``threads`` decides on the
    number of splits only: a kernel that is modelled has one worker."""
    assert w.kv_heads is not None
    values = {
        "batch": w.batch,
        "query_heads": w.query_heads,
        "group": w.group,
        "query_length": w.query_length,
        "key_length": w.key_length,
        "kv_batches": w.batch,
        "key_rows": w.key_length,
        "causal_offset": 0 if w.causal == "top_left" else w.key_length - w.query_length,
        "threads": 1,
        "splits": _splits(w, threads),
        "page_shift": _PAGE_SHIFT,
    }
    if w.window is not None:
        right = 0 if w.causal else _ALL if w.window[1] == UNBOUNDED else w.window[1]
        # No end on the left: counts of loops that begin anywhere are not constant. The task that is modelled
        # sees about as many keys as the window has (QueryBlocks.modelled).
        values |= {"window_left": _ALL, "window_right": right}
    return values


def strides(w: AttentionWorkload) -> dict[str, int]:
    """Strides of dense tensors in elements by name, masks and scales included."""
    assert w.kv_heads is not None
    assert w.value_dim is not None
    found: dict[str, int] = {"mask_column_stride": 1, "mask_row_stride": w.key_length}
    found |= {"mask_head_stride": 0, "mask_batch_stride": 0}
    for name, heads, rows, columns in (
        ("query", w.query_heads, w.query_length, w.head_dim),
        ("key", w.kv_heads, w.key_length, w.head_dim),
        ("value", w.kv_heads, w.key_length, w.value_dim),
        ("out", w.query_heads, w.query_length, w.value_dim),
        ("key_scale", w.kv_heads, w.key_length, 1),
        ("value_scale", w.kv_heads, w.key_length, 1),
    ):
        found[f"{name}_row_stride"] = columns
        found[f"{name}_head_stride"] = rows * columns
        found[f"{name}_batch_stride"] = heads * rows * columns
    return found


def _splits(w: AttentionWorkload, threads: int) -> int:
    if not w.length_class.startswith("decode"):
        return 1
    assert w.kv_heads is not None
    assert w.value_dim is not None
    sizes = Geometry(
        4, w.batch, w.query_heads, w.kv_heads, w.query_length, w.key_length, w.head_dim, w.value_dim
    )
    return splits(w, sizes, threads)
