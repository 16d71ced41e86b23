"""The space of decoding on a matrix unit."""

from __future__ import annotations

from tvm_attention.schedules.candidate import Candidate, Choices
from tvm_attention.schedules.cpu_decode_space import DIGITS, decode_rows
from tvm_attention.schedules.machine import MachineParameters
from tvm_attention.workload import AttentionWorkload

# Of a tile (tvm_attention.compute.matrix_decode, which needs TVM): machines without it read this.
COLUMNS, TILE_ROW = 16, 64
_PREFETCH = (0, 1, 2, 4, 8)


def matrix_decode_choices(w: AttentionWorkload) -> Choices:
    """The decisions; values of int8 keys are weighted by register tiles."""
    if w.kv_dtype is None:
        return {"prefetch": _PREFETCH}
    return {"prefetch": _PREFETCH, "value_rows": (1, 2, 4, 8), "value_vectors": (1, 2, 4, 8, 16)}


def matrix_decode_refusal(w: AttentionWorkload, m: MachineParameters, c: Candidate) -> str | None:
    """Why a candidate is refused; None where it is not."""
    rows, decisions = decode_rows(w), dict(c.decisions)
    assert rows is not None
    assert w.value_dim is not None
    if "value_rows" not in decisions:
        return None
    if decisions["value_rows"] > rows:
        return f"value_rows={c['value_rows']} exceeds the {rows} rows of the class"
    if (w.value_dim // m.lanes) % c["value_vectors"]:
        return f"value_vectors={c['value_vectors']} does not divide the value vectors"
    return None if m.holds(c["value_rows"], c["value_vectors"]) else "value tile too large"


def matrix_decode_is_faster(w: AttentionWorkload, m: MachineParameters, rows: int) -> bool:
    """Measured: a tile costs the same for one row as for many, which pays from four rows on."""
    return rows >= 4 and matrix_decode_serves(w, m)


def default_matrix_decode(w: AttentionWorkload, rows: int) -> Candidate:
    """Memory is asked for by the processor's own prefetchers."""
    assert w.value_dim is not None
    if w.kv_dtype is None:
        return Candidate.of("matrix_decode", {"prefetch": 0})
    vectors = next(
        v for v in ((4, 2, 1) if rows > 1 else (8, 4, 2, 1)) if w.value_dim % (16 * v) == 0
    )
    tile = {"value_rows": min(rows, 4), "value_vectors": vectors}
    return Candidate.of("matrix_decode", {"prefetch": 0, **tile})


def matrix_decode_serves(w: AttentionWorkload, m: MachineParameters) -> bool:
    """Keys and values that lie row after row, of whole tiles, stored as the unit multiplies them."""
    rows = decode_rows(w)
    if rows is None or w.paged or w.output == "weights":
        return False
    assert w.value_dim is not None
    if w.kv_dtype == "int8":
        fits = w.head_dim % TILE_ROW == 0 and w.value_dim % m.lanes == 0
        return m.matrix_integers and fits and rows * DIGITS[4] <= 2 * COLUMNS
    fits = w.head_dim % (TILE_ROW // 2) == 0 and w.value_dim % (TILE_ROW // 2) == 0
    stored = w.dtype == "bfloat16" and w.kv_dtype is None
    return m.matrix_unit and stored and fits and rows <= COLUMNS
