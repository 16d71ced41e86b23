"""Where a matrix unit is faster than vectors, and its tiles to start from: what measured best on Sapphire
Rapids over head dimensions of 32 to 256 and 32 to 3000 queries and keys."""

from __future__ import annotations

from tvm_attention.schedules.candidate import Candidate
from tvm_attention.workload import AttentionWorkload

_NARROWEST = 32  # columns of a product: heads narrower than that are mostly padding
_NARROW = 64
_STRIPS_ROWS = 32  # queries of a strip


def matrix_is_faster(w: AttentionWorkload) -> bool:
    """float32 takes six products, which pay off from some hundred keys of wide heads and tens of queries on.
    Lengths are compared by their powers of two, within which one kernel serves all."""
    assert w.value_dim is not None
    if min(w.head_dim, w.value_dim) < _NARROWEST:
        return False
    if w.dtype != "float32":
        return True
    if w.length_class != "short":
        return not w.few_queries
    queries, keys = w.query_length.bit_length(), w.key_length.bit_length()
    enough = queries + keys >= (16 if w.causal else 15) and keys >= 7
    return enough and w.head_dim >= _NARROW


def default_matrix(w: AttentionWorkload) -> Candidate:
    """A task of as many strips as there are queries, sixteen at most: more share what is packed of keys and
    values. Blocks of 128 keys keep the pieces of float32 and float16 in L1; bfloat16 is one piece."""
    queries = w.query_length.bit_length()
    strips = next((s for bits, s in ((6, 2), (7, 4), (8, 8)) if queries <= bits), 16)
    long = w.length_class == "long"
    key_block, value_rows = 128, 16
    if w.dtype == "bfloat16" and w.key_length >= 128:
        key_block, value_rows = 256, 32
        if long and strips == 16 and not w.causal:
            strips = 32
    elif w.dtype == "float32" and long and w.head_dim <= _NARROW:
        key_block, value_rows = 512, 32
    decisions = {
        "query_block": _STRIPS_ROWS,
        "query_strips": strips,
        "key_block": key_block,
        "value_rows": value_rows,
        "overlapped": int(w.window is None),
    }
    return Candidate.of("matrix", decisions)
