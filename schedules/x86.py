"""The x86 schedules: vector width and registers by instruction-set level, defaults to start from."""

from __future__ import annotations

from dataclasses import dataclass

from tvm_attention.schedules.candidate import Candidate
from tvm_attention.schedules.cpu_decode_space import (
    decode_rows,
    integer_serves,
    split_kv_serves,
)
from tvm_attention.schedules.cpu_matrix_decode_space import (
    default_matrix_decode,
    matrix_decode_is_faster,
    matrix_decode_serves,
)
from tvm_attention.schedules.cpu_space import (
    ROWS,
    build,
    converts,
    design_space,
    matrix_serves,
    running_serves,
)
from tvm_attention.schedules.machine import MachineParameters
from tvm_attention.schedules.matrix_defaults import default_matrix, matrix_is_faster
from tvm_attention.target import HardwareTarget
from tvm_attention.workload import AttentionWorkload

__all__ = [
    "MACHINES",
    "build",
    "default_candidate",
    "design_space",
    "machine_parameters",
    "starting_points",
]

MATRIX_UNIT = frozenset({"amx-tile", "amx-bf16"})  # features
_L1, _L2 = 32 << 10, 1 << 20  # where a processor does not say

MACHINES = {
    "x86-64-v2": MachineParameters(4, 16, False, _L1, _L2),
    "x86-64-v3": MachineParameters(8, 16, False, _L1, _L2),
    "x86-64-v4": MachineParameters(16, 32, True, _L1, _L2, exponent_instructions=True),
}


@dataclass(frozen=True, slots=True)
class _DefaultTiles:
    """Tiles to start from on a number of vector registers: the most accumulators that leave room for a
    step's vectors (and, where an FMA cannot broadcast from memory, the scalar)."""

    rows: int  # of the register tiles of running attention, three vectors wide
    strips: int  # of three vectors of queries, that share what is read of long keys
    score_rows: int  # of the tiles of the other variants, two vectors wide
    value_rows: int
    queries: int  # of a block; the register tile's rows and vectors divide it


_TILES = {16: _DefaultTiles(4, 8, 6, 6, 48), 32: _DefaultTiles(8, 4, 8, 12, 32)}
_KEYS = 192  # of a block


def machine_parameters(target: HardwareTarget) -> MachineParameters:
    """The level's vector registers with the target's own cache sizes."""
    level = MACHINES[target.isa]
    vnni = "avx512vnni" if level.lanes == 16 else "avxvnni"
    return MachineParameters(
        level.lanes,
        level.registers,
        level.broadcast_operand,
        target.l1d or level.l1,
        target.l2 or level.l2,
        matrix_unit=target.features >= MATRIX_UNIT,
        exponent_instructions=level.exponent_instructions,
        dot_run=2,
        dot_sums=vnni in target.features,
        matrix_integers=target.features >= {*MATRIX_UNIT, "amx-int8"},
    )


def default_candidate(workload: AttentionWorkload, machine: MachineParameters) -> Candidate:
    """What runs where no record fits: tiles that measured well by hand, sized by the machine.

    Split-KV to decode, otherwise running attention, on the matrix unit where that is faster; row-block where
    queries and keys are few, and where running attention does not serve, there up to about a thousand keys
    and blocks-and-merge beyond.
    """
    rows = decode_rows(workload)
    if rows is not None and split_kv_serves(workload, machine):
        if matrix_decode_is_faster(workload, machine, rows):
            return default_matrix_decode(workload, rows)
        return _default_split_kv(workload, machine, rows)
    if matrix_serves(workload, machine) and matrix_is_faster(workload):
        return default_matrix(workload)
    if _row_block_is_faster(workload, machine):
        return _default_of_few(workload, machine)
    if running_serves(workload) and workload.output != "weights":
        return _default_running(workload, machine)
    return _default_apart(workload, machine)


def _row_block_is_faster(w: AttentionWorkload, machine: MachineParameters) -> bool:
    """Measured with 32 registers, of short lengths: by up to 1.5 where values would be packed for their NaN,
    by 1.2 for few queries and keys of wide heads. Lengths count by their powers of two, within which one
    kernel serves all."""
    if machine.registers < 32 or w.length_class != "short" or converts(w) or w.output == "weights":
        return False
    few = w.query_length.bit_length() + w.key_length.bit_length() <= 14
    return w.masks or (few and w.head_dim > 128)


def _default_of_few(w: AttentionWorkload, machine: MachineParameters) -> Candidate:
    """Row-block with the result's columns along the lanes where they are whole vectors."""
    candidate = _default_apart(w, machine)
    assert w.value_dim is not None
    if w.value_dim % (candidate["value_vectors"] * machine.lanes):
        return candidate
    return candidate.replace(
        queries_along_lanes=0,
        value_rows=_TILES[machine.registers].rows,
        value_columns_outer=0,
    )


def _default_apart(workload: AttentionWorkload, machine: MachineParameters) -> Candidate:
    """Scores, weights and values one after the other: of all keys, of long ones by blocks."""
    tiles, copies = _TILES[machine.registers], int(converts(workload))
    decisions = {
        "query_block": tiles.queries,
        # Masks are transposed by tiles of four keys.
        "score_rows": 4 if workload.mask_dense and tiles.score_rows % 4 else tiles.score_rows,
        "score_vectors": 2,
        "pack_key": copies,
    }
    if workload.output == "weights":
        return Candidate.of("weights", decisions)
    decisions |= {
        "value_rows": _rows_within(workload, tiles.value_rows),
        "value_vectors": 2,
        "value_columns_outer": 1,
        "pack_value": copies,
    }
    if workload.length_class == "long":
        blocks = {"key_block": _KEYS, "pack_value": 1}
        return Candidate.of("blocks_and_merge", decisions | blocks)
    return Candidate.of("row_block", decisions | {"queries_along_lanes": 1})


def starting_points(workload: AttentionWorkload, machine: MachineParameters) -> list[Candidate]:
    """What a search begins with: the default schedule, then those of variants that it was preferred to."""
    points = [default_candidate(workload, machine)]
    rows = decode_rows(workload)
    if rows is not None and matrix_decode_serves(workload, machine):
        tiles = default_matrix_decode(workload, rows)
        points += [tiles, tiles.replace(prefetch=1), _default_split_kv(workload, machine, rows)]
    if matrix_serves(workload, machine):
        tiles = default_matrix(workload)
        wide = {"query_block": 128, "query_strips": 4, "key_block": 128, "overlapped": 0}
        points += [tiles, tiles.replace(key_block=512), tiles.replace(**wide)]
        points.append(tiles.replace(query_strips=2 * tiles["query_strips"]))
        points += [tiles.replace(key_block=k, value_rows=r) for k, r in ((128, 16), (256, 32))]
    if running_serves(workload):
        points.append(_default_running(workload, machine))
    if workload.length_class == "short" and not converts(workload):
        points.append(_default_of_few(workload, machine))
    return list(dict.fromkeys(points))


def _rows_within(w: AttentionWorkload, most: int) -> int:
    assert w.value_dim is not None
    return max(r for r in ROWS if r <= min(most, w.value_dim))


def _default_running(w: AttentionWorkload, machine: MachineParameters) -> Candidate:
    tiles, long = _TILES[machine.registers], w.length_class == "long" and not w.few_queries
    return Candidate.of(
        "running",
        {
            "query_block": 3 * machine.lanes,
            "query_strips": tiles.strips if long else 2 if w.masks else 1,
            "key_block": _KEYS,
            "score_rows": tiles.rows,
            "score_vectors": 3,
            "value_rows": _rows_within(w, tiles.rows),
            "value_vectors": 3,
            "value_columns_outer": 0,
            "pack_key": int(converts(w)),
            "pack_value": int(long or w.masks or converts(w)),
        },
    )


def _default_split_kv(w: AttentionWorkload, machine: MachineParameters, rows: int) -> Candidate:
    assert w.value_dim is not None
    room = machine.registers - 1
    vectors = next(
        v for v in (8, 4, 2, 1) if w.value_dim % (v * min(machine.lanes, 16)) == 0 or v == 1
    )
    while vectors > 1 and (min(rows, 4) + 1) * vectors > room:
        vectors //= 2
    integers = integer_serves(w, machine)
    words = int(integers and rows == 1 and machine.dot_sums)
    keys = 2 if 3 * rows < room else 1
    if words or (integers and rows <= 4 and room > 16):
        keys = 4  # numbers that are converted first come later
    decisions = {
        "score_keys": keys,
        "value_rows": min(rows, 4),
        "value_vectors": vectors,
        "streams": 4,
        "prefetch": 1,
        **({"integer_products": words} if integers else {}),
    }
    return Candidate.of("split_kv", decisions)
