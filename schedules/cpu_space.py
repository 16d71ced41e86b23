"""The CPU design space, shared by x86 and ARM: which variants and tiles may serve a workload.

Nothing here needs TVM, so that a record can be matched to a cached kernel without loading a compiler.
"""

from __future__ import annotations

from typing import Any

from tvm_attention.schedules.candidate import Candidate, Choices, DesignSpace
from tvm_attention.schedules.cpu_decode_space import (
    decode_rows,
    split_kv_choices,
    split_kv_refusal,
    split_kv_serves,
)
from tvm_attention.schedules.cpu_matrix_decode_space import (
    matrix_decode_choices,
    matrix_decode_refusal,
    matrix_decode_serves,
)
from tvm_attention.schedules.machine import MachineParameters
from tvm_attention.workload import AttentionWorkload

ROWS = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16)
MAX_QUERY_BLOCK = 128
MAX_MATRIX_ROWS = 1024  # of a task on the matrix unit


def build(
    workload: AttentionWorkload,
    machine: MachineParameters,
    candidate: Candidate,
    fixed: Any = None,
) -> Any:
    """The TVM schedule of a candidate; ``fixed`` as in :func:`tvm_attention.schedules.cpu.build`."""
    from tvm_attention.schedules import cpu

    return cpu.build(workload, machine, candidate, fixed)


def _row_block_choices(w: AttentionWorkload, m: MachineParameters) -> Choices:
    assert w.value_dim is not None
    along = (0, 1) if w.value_dim % m.lanes == 0 else (1,)
    return {
        "query_block": tuple(m.lanes * n for n in range(1, MAX_QUERY_BLOCK // m.lanes + 1)),
        "score_rows": ROWS,
        "score_vectors": (1, 2, 3, 4),
        "value_rows": ROWS,
        "value_vectors": (1, 2, 3, 4),
        "value_columns_outer": (0, 1),
        "queries_along_lanes": along,
        "pack_key": (0, 1),
        "pack_value": (0, 1),
    }


def _weights_choices(w: AttentionWorkload, m: MachineParameters) -> Choices:
    row_block = _row_block_choices(w, m)
    return {
        name: row_block[name] for name in ("query_block", "score_rows", "score_vectors", "pack_key")
    }


def _key_block_choices(w: AttentionWorkload, m: MachineParameters) -> Choices:
    return {
        "query_block": tuple(m.lanes * n for n in range(1, MAX_QUERY_BLOCK // m.lanes + 1)),
        "key_block": (64, 96, 128, 192, 256, 384, 512, 768, 1024),
        "score_rows": ROWS,
        "score_vectors": (1, 2, 3, 4),
        "value_rows": ROWS,
        "value_vectors": (1, 2, 3, 4),
        "value_columns_outer": (0, 1),
        "pack_key": (0, 1),
        "pack_value": (0, 1),
    }


def _matrix_choices(m: MachineParameters) -> Choices:
    # Code for each number of vectors in a strip of 32 rows is too much where a strip has eight.
    blocks = (32, 64, 96, 128) if m.matrix_unit else (64, 96, 128)
    return {
        "query_block": blocks,
        "query_strips": (1, 2, 4, 8, 16, 32),
        "key_block": (64, 96, 128, 192, 256, 384, 512),
        "value_rows": (16, 32),
        "overlapped": (0, 1) if m.matrix_unit else (0,),  # a unit beside the vectors
    }


def _refusal(w: AttentionWorkload, m: MachineParameters, c: Candidate) -> str | None:
    assert w.value_dim is not None
    if c.variant == "split_kv":
        return split_kv_refusal(w, m, c)
    if c.variant == "matrix_decode":
        return matrix_decode_refusal(w, m, c)
    if c.variant == "matrix":
        rows = c["query_block"] * c["query_strips"]
        if c["overlapped"] and (c["query_block"] != 32 or c["query_strips"] == 1 or w.window):
            return (
                "scores are computed ahead for strips as wide as a tile that begin at the first key"
            )
        return f"a task of {rows} rows leaves threads idle" if rows > MAX_MATRIX_ROWS else None
    if c.variant == "weights":
        return _weights_refusal(w, m, c)
    return _prefill_refusal(w, m, c)


def _weights_refusal(w: AttentionWorkload, m: MachineParameters, c: Candidate) -> str | None:
    if converts(w) and not c["pack_key"]:
        return "broadcasts of keys would convert each again at every use; pack them"
    if c["query_block"] % (c["score_vectors"] * m.lanes):
        return f"score_vectors={c['score_vectors']} does not divide the query block"
    if not m.holds(c["score_rows"], c["score_vectors"], min(m.registers // 4, 8)):
        return f"the score tile does not fit into {m.registers} registers"
    return None


def converts(workload: AttentionWorkload) -> bool:
    """Whether keys and values are stored as something else than the float32 that is computed with."""
    return (workload.kv_dtype or workload.dtype) != "float32"


def _prefill_refusal(w: AttentionWorkload, m: MachineParameters, c: Candidate) -> str | None:
    along_queries = c.variant != "row_block" or c["queries_along_lanes"]
    assert w.value_dim is not None
    columns = c["query_block"] if along_queries else w.value_dim
    if converts(w) and not (c["pack_key"] and (c["pack_value"] or not along_queries)):
        return "broadcasts of keys or values would convert each again at every use; pack them"
    if w.kv_dtype is not None and not c["pack_value"]:
        return "quantised values are scaled when they are packed"
    if not converts(w) and w.length_class == "long" and c["pack_key"] and c["pack_value"]:
        return "copies of long keys and of long values would take too much memory"
    if w.mask_dense and c["score_rows"] % 4:
        return f"score_rows={c['score_rows']} is no multiple of 4, by which masks are transposed"
    if c.variant == "running" and w.keeps_maximum and c["value_rows"] == 1:
        return "sums and maxima of rows share a tile of two rows at least"
    if c.variant == "running" and w.masks and not c["pack_value"]:
        return "values that are not finite are taken out when they are packed"
    for name, width in (("score", c["query_block"]), ("value", columns)):
        vectors = c[f"{name}_vectors"]
        if width % (vectors * m.lanes):
            return f"{name}_vectors={vectors} does not divide {width} columns"
        least = 1 if name == "value" and w.value_dim < 8 else min(m.registers // 4, 8)
        if not m.holds(c[f"{name}_rows"], vectors, least):
            return f"the {name} tile does not fit into {m.registers} registers"
    if along_queries and c["value_rows"] > w.value_dim > 1:
        return f"value_rows={c['value_rows']} exceeds the value dimension"
    if not along_queries and c["query_block"] % c["value_rows"]:
        return f"value_rows={c['value_rows']} does not divide the query block"
    if c.variant != "row_block" and c["key_block"] % c["score_rows"]:
        return f"score_rows={c['score_rows']} does not divide the key block"
    return None


def design_space(workload: AttentionWorkload, machine: MachineParameters) -> DesignSpace:
    """The variants that serve a workload's length class, each with its decisions."""
    variants: dict[str, Choices] = {}
    if workload.output == "weights":
        variants["weights"] = _weights_choices(workload, machine)
    elif decode_rows(workload) is not None and split_kv_serves(workload, machine):
        variants["split_kv"] = split_kv_choices(workload, machine)
        if matrix_decode_serves(workload, machine):
            variants["matrix_decode"] = matrix_decode_choices(workload)
    else:
        variants["row_block"] = _row_block_choices(workload, machine)
        variants["blocks_and_merge"] = _key_block_choices(workload, machine)
        variants["streaming"] = _key_block_choices(workload, machine)
        if running_serves(workload):
            variants["running"] = {
                **_key_block_choices(workload, machine),
                "query_strips": (1, 2, 4, 8),
            }
        if matrix_serves(workload, machine):
            variants["matrix"] = _matrix_choices(machine)
    return DesignSpace(variants, lambda c: _refusal(workload, machine, c))


def matrix_serves(workload: AttentionWorkload, machine: MachineParameters) -> bool:
    """Values are transposed as they lie in a tensor."""
    as_they_lie = not workload.paged and workload.kv_dtype is None
    serves = machine.multiplies_tiles(workload.dtype) and as_they_lie
    return serves and workload.output != "weights"


def running_serves(workload: AttentionWorkload) -> bool:
    """Running attention looks for NaN among masked values by blocks of a key tensor that all batch elements
    start at the same place of. Sums and maxima of rows share a tile: a single column leaves no room."""
    w = workload
    plain_values = not w.ragged and not w.paged
    assert w.value_dim is not None
    has_room = w.value_dim > 1 or not w.keeps_maximum
    return w.output != "weights" and has_room and (plain_values or not w.masks)
