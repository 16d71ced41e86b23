"""Building the CPU kernels, shared by x86 and ARM: from a candidate to a schedule."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tvm_attention.compute import (
    Exponent,
    FixedLengths,
    KeyBlockTiles,
    MatrixTiles,
    Problem,
    RowBlockTiles,
    SplitKVTiles,
    blocks_and_merge,
    mask_alone,
    matrix,
    matrix_decode,
    row_block,
    running,
    split_kv,
    streaming,
    weights,
)
from tvm_attention.compute.matrix_decode import KEYS
from tvm_attention.schedules.candidate import Candidate
from tvm_attention.schedules.cpu_decode import schedule_split_kv
from tvm_attention.schedules.cpu_decode_space import decode_rows, dividing_lanes, integer_lanes
from tvm_attention.schedules.cpu_matrix import schedule_matrix
from tvm_attention.schedules.cpu_matrix_decode import schedule_matrix_decode
from tvm_attention.schedules.cpu_matrix_decode_space import matrix_decode_serves
from tvm_attention.schedules.cpu_prefill import (
    schedule_blocks_and_merge,
    schedule_row_block,
    schedule_streaming,
    schedule_weights,
)
from tvm_attention.schedules.cpu_running import schedule_running
from tvm_attention.schedules.cpu_task import Widths
from tvm_attention.schedules.machine import MachineParameters
from tvm_attention.workload import AttentionWorkload


def build(
    workload: AttentionWorkload,
    machine: MachineParameters,
    candidate: Candidate,
    fixed: FixedLengths | None = None,
) -> Any:
    """The scheduled kernel of a candidate, for all lengths (or at fixed ones, for the cost model)."""
    exponent: Exponent = "instructions" if machine.exponent_instructions else "bits"
    problem = Problem(workload, fixed, exponent=exponent)
    return _BUILDERS[candidate.variant](problem, workload, machine, candidate)


def _widths(p: Problem, m: MachineParameters) -> Widths:
    head, value = (dividing_lanes(n, m.lanes) for n in (p.head_dim, p.value_dim))
    return Widths(m.lanes, head, value, p.head_dim, p.value_dim)


def _build_row_block(p: Problem, w: AttentionWorkload, m: MachineParameters, c: Candidate) -> Any:
    widths = _widths(p, m)
    along = bool(c["queries_along_lanes"])
    tiles = RowBlockTiles(
        c["query_block"], c["score_rows"], c["value_rows"], along, bool(c["pack_key"]),
        bool(c["pack_value"]), m.lanes if along else widths.value,
    )  # fmt: skip
    return schedule_row_block(row_block(p, tiles), c, widths)


def _build_weights(p: Problem, w: AttentionWorkload, m: MachineParameters, c: Candidate) -> Any:
    tiles = RowBlockTiles(
        c["query_block"], c["score_rows"], 1, True, bool(c["pack_key"]), False, m.lanes
    )
    return schedule_weights(weights(p, tiles), c, _widths(p, m))


def _key_block_tiles(m: MachineParameters, c: Candidate) -> KeyBlockTiles:
    return KeyBlockTiles(
        c["query_block"], c["key_block"], c["score_rows"], c["value_rows"], bool(c["pack_key"]),
        bool(c["pack_value"]), m.lanes,
    )  # fmt: skip


def _build_blocks_and_merge(
    p: Problem, w: AttentionWorkload, m: MachineParameters, c: Candidate
) -> Any:
    func = blocks_and_merge(p, _key_block_tiles(m, c))
    return schedule_blocks_and_merge(func, c, _widths(p, m))


def _build_streaming(p: Problem, w: AttentionWorkload, m: MachineParameters, c: Candidate) -> Any:
    return schedule_streaming(streaming(p, _key_block_tiles(m, c)), c, _widths(p, m))


def _build_running(p: Problem, w: AttentionWorkload, m: MachineParameters, c: Candidate) -> Any:
    func = running(p, _key_block_tiles(m, c), c["query_strips"])
    return schedule_running(func, c, _widths(p, m))


def _build_matrix(p: Problem, w: AttentionWorkload, m: MachineParameters, c: Candidate) -> Any:
    if not m.multiplies_tiles(w.dtype):  # LLVM would end the process
        raise ValueError("the variant matrix needs a processor with a matrix unit, or BFMMLA")
    tiles = MatrixTiles(c["query_block"], c["query_strips"], c["key_block"], c["value_rows"])
    return schedule_matrix(matrix(p, tiles), c, _widths(p, m), mask_alone(p))


def _build_split_kv(p: Problem, w: AttentionWorkload, m: MachineParameters, c: Candidate) -> Any:
    rows = decode_rows(w)
    assert rows is not None
    halves, integer = (dict(c.decisions).get(f"{n}_products", 0) for n in ("half", "integer"))
    if halves:
        score_lanes = halves * m.lanes
    elif integer:
        score_lanes = integer_lanes(p.head_dim, m)
    else:
        score_lanes = dividing_lanes(p.head_dim, m.lanes)
    tiles = SplitKVTiles(
        rows,
        m.lanes,
        score_lanes,
        dividing_lanes(p.value_dim, m.lanes),
        c["streams"],
        integer,
        m.dot_run == 2,
        halves,
    )
    return schedule_split_kv(split_kv(p, tiles), c, tiles)


def _build_matrix_decode(
    p: Problem, w: AttentionWorkload, m: MachineParameters, c: Candidate
) -> Any:
    rows = decode_rows(w)
    assert rows is not None
    if not matrix_decode_serves(w, m):  # LLVM would end the process
        raise ValueError("the variant matrix_decode needs a processor with a matrix unit")
    tiles = SplitKVTiles(rows, KEYS, m.lanes, m.lanes, 1, int(w.kv_dtype == "int8"))
    return schedule_matrix_decode(matrix_decode(p, tiles), c, tiles)


_BUILDERS: dict[str, Callable[[Problem, AttentionWorkload, MachineParameters, Candidate], Any]] = {
    "row_block": _build_row_block,
    "blocks_and_merge": _build_blocks_and_merge,
    "streaming": _build_streaming,
    "running": _build_running,
    "matrix": _build_matrix,
    "split_kv": _build_split_kv,
    "matrix_decode": _build_matrix_decode,
    "weights": _build_weights,
}
