"""A first look at a candidate, without compiling it: whether its register tiles keep the multipliers busy."""

from __future__ import annotations

from tvm_attention.schedules import Candidate, MachineParameters


def strength(candidate: Candidate, machine: MachineParameters) -> float:
    """From 0 to 1: the share of a step's time that its multiply-adds need, were all loads and spills
    paid for."""
    c = dict(candidate.decisions)
    if candidate.variant in ("split_kv", "matrix", "matrix_decode"):
        return 1.0
    tiles = [(c["score_rows"], c["score_vectors"], True)]
    if "value_rows" in c:
        along = bool(c.get("queries_along_lanes", 1))
        tiles.append((c["value_rows"], c["value_vectors"], not along))
    return min(_tile(rows, vectors, steps, machine) for rows, vectors, steps in tiles)


def _tile(rows: int, vectors: int, along_steps: bool, m: MachineParameters) -> float:
    fma = rows * vectors
    loads = vectors + (rows / 4 if m.element_operand else rows / 2 if m.broadcast_operand else rows)
    needed = fma + vectors + (0 if m.broadcast_operand else 1)
    if m.element_operand and along_steps:
        needed = fma + vectors + rows
    spilt = max(0, needed - m.registers)
    return fma / (max(fma, 1.2 * loads) + 0.5 * loads + 4 * spilt)
