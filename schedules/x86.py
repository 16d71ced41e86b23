"""The x86 schedules: vector width and registers by instruction-set level, defaults to start from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tvm_attention.schedules.candidate import Candidate
from tvm_attention.schedules.cpu_space import (
    ROWS,
    converts,
    decode_rows,
    design_space,
    split_kv_serves,
)
from tvm_attention.schedules.machine import MachineParameters
from tvm_attention.target import HardwareTarget
from tvm_attention.workload import AttentionWorkload

__all__ = ["MACHINES", "build", "default_candidate", "design_space", "machine_parameters"]

_L1, _L2 = 32 << 10, 1 << 20  # where a processor does not say

MACHINES = {
    "x86-64-v2": MachineParameters(4, 16, False, _L1, _L2),
    "x86-64-v3": MachineParameters(8, 16, False, _L1, _L2),
    "x86-64-v4": MachineParameters(16, 32, True, _L1, _L2),
}


@dataclass(frozen=True, slots=True)
class _DefaultTiles:
    """Tiles to start from on a number of vector registers: the most accumulators that leave room for a
    step's vectors (and, where an FMA cannot broadcast from memory, the scalar)."""

    score_rows: int
    value_rows: int
    vectors: int
    queries: int  # of a block; the register tile's rows and vectors divide it
    long_queries: int  # the same for long rows of keys, which are then read half as often
    keys: int  # of a block


_TILES = {16: _DefaultTiles(6, 6, 2, 48, 48, 192), 32: _DefaultTiles(8, 12, 2, 32, 64, 256)}


def machine_parameters(target: HardwareTarget) -> MachineParameters:
    """The level's vector registers with the target's own cache sizes."""
    level = MACHINES[target.isa]
    return MachineParameters(
        level.lanes,
        level.registers,
        level.broadcast_operand,
        target.l1d or level.l1,
        target.l2 or level.l2,
    )


def build(
    workload: AttentionWorkload,
    machine: MachineParameters,
    candidate: Candidate,
    fixed: Any = None,
) -> Any:
    """The TVM schedule of a candidate; ``fixed`` as in :func:`tvm_attention.schedules.cpu.build`."""
    from tvm_attention.schedules import cpu

    return cpu.build(workload, machine, candidate, fixed)


def default_candidate(workload: AttentionWorkload, machine: MachineParameters) -> Candidate:
    """What runs where no record fits: tiles that measured well by hand, sized by the machine.

    Row-block up to about a thousand keys, blocks-and-merge beyond.
    """
    assert workload.value_dim is not None
    rows = decode_rows(workload)
    if rows is not None and split_kv_serves(workload, machine):
        return _default_split_kv(workload, machine, rows)
    tiles = _TILES[machine.registers]
    copies = int(converts(workload))
    if workload.output == "weights":
        return Candidate.of(
            "weights",
            {
                "query_block": tiles.queries,
                "score_rows": tiles.score_rows,
                "score_vectors": tiles.vectors,
                "pack_key": copies,
            },
        )
    decisions = {
        "query_block": tiles.queries,
        "score_rows": tiles.score_rows,
        "score_vectors": tiles.vectors,
        "value_rows": max(r for r in ROWS if r <= min(tiles.value_rows, workload.value_dim)),
        "value_vectors": tiles.vectors,
        "value_columns_outer": 1,
        "pack_key": copies,
        "pack_value": copies,
    }
    if workload.length_class == "long":
        # Causal tasks stay small: what a block computes past the diagonal is lost.
        queries = tiles.queries if workload.causal else tiles.long_queries
        blocks = {"query_block": queries, "key_block": tiles.keys, "pack_value": 1}
        return Candidate.of("blocks_and_merge", decisions | blocks)
    whole_vectors = workload.value_dim % (tiles.vectors * machine.lanes) == 0
    if workload.length_class == "short" and whole_vectors:
        # The result is not transposed, which counts where there are few keys to each row.
        along_values = {"queries_along_lanes": 0, "value_columns_outer": 0}
        return Candidate.of(
            "row_block", decisions | along_values | {"value_rows": tiles.score_rows}
        )
    return Candidate.of("row_block", decisions | {"queries_along_lanes": 1})


def _default_split_kv(w: AttentionWorkload, machine: MachineParameters, rows: int) -> Candidate:
    assert w.value_dim is not None
    room = machine.registers - 1
    vectors = next(
        v for v in (8, 4, 2, 1) if w.value_dim % (v * min(machine.lanes, 16)) == 0 or v == 1
    )
    while vectors > 1 and (min(rows, 4) + 1) * vectors > room:
        vectors //= 2
    keys = 4 if 5 * rows < room else 2 if 3 * rows < room else 1
    return Candidate.of(
        "split_kv",
        {"score_keys": keys, "value_rows": min(rows, 4), "value_vectors": vectors, "streams": 4},
    )
