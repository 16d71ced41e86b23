"""The x86 schedules: vector width and registers by instruction-set level, defaults to start from."""

from __future__ import annotations

from typing import Any

from tvm_attention.schedules.candidate import Candidate
from tvm_attention.schedules.cpu_space import decode_rows, design_space, split_kv_serves
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

# Register tiles by number of vector registers: rows and vectors of the most accumulators that leave room
# for a step's vectors (and, where an FMA cannot broadcast from memory, the scalar); queries of a block,
# which both divide; keys of a block.
_TILES = {16: (6, 2, 48, 192), 32: (8, 2, 32, 256)}


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

    Row-block up to about a thousand keys, blocks-and-merge beyond; value columns along the lanes where
    they fill whole vectors, which saves transposing the result.
    """
    assert workload.value_dim is not None
    rows = decode_rows(workload)
    if rows is not None and split_kv_serves(workload, machine):
        return _default_split_kv(workload, machine, rows)
    tile_rows, vectors, queries, keys = _TILES[machine.registers]
    decisions = {
        "query_block": queries,
        "score_rows": tile_rows,
        "score_vectors": vectors,
        "value_rows": min(tile_rows, workload.value_dim),
        "value_vectors": vectors,
        "value_columns_outer": 1,
    }
    if workload.length_class == "long":
        return Candidate.of("blocks_and_merge", decisions | {"key_block": keys, "pack_value": 1})
    if workload.value_dim % (vectors * machine.lanes):
        return Candidate.of("row_block", decisions | {"queries_along_lanes": 1})
    along_values = {"queries_along_lanes": 0, "value_rows": tile_rows, "value_columns_outer": 0}
    return Candidate.of("row_block", decisions | along_values)


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
        {"score_keys": keys, "value_rows": min(rows, 4), "value_vectors": vectors},
    )
