"""Schedule of fused attention on a GPU: stages to threads, registers and shared memory."""

from __future__ import annotations

from typing import Any

from tvm import tirx
from tvm.s_tir import Schedule

from tvm_attention.compute import FixedLengths, Problem
from tvm_attention.compute.device import DeviceTiles
from tvm_attention.compute.fused import fused, fused_split_kv
from tvm_attention.schedules.candidate import Candidate
from tvm_attention.schedules.cuda_space import (
    FUSED_SPLIT_KV,
    FUSED_TENSOR,
    MOST_LOADED,
    OVERLAP,
    sizes_of,
)
from tvm_attention.schedules.cuda_stages import (
    bind,
    in_registers,
    product,
    repair,
    rounded_weights,
    shared_copy,
    staged,
    tensor_product,
    unroll,
    weights,
)
from tvm_attention.schedules.register_tile import annotate
from tvm_attention.schedules.stages import place, present
from tvm_attention.workload import AttentionWorkload

# Stages of a block of keys, as they hang from its end. VT is loaded before the barrier that MS needs anyway.
_BLOCK_STAGES = ("OX", "FLAG", "OT", "PS", "LP", "P", "M", "VT", "MS", "MP", "SC", "ST", "KT")


def tiles_of(workload: AttentionWorkload, c: Candidate) -> DeviceTiles:
    """The tiles of a candidate, as the expression has them."""
    sizes = sizes_of(workload, c)
    return DeviceTiles(
        c["row_threads"],
        c["column_threads"],
        c["rows"],
        c["keys"],
        sizes.columns,
        sizes.adjacent,
        split=c.variant == FUSED_SPLIT_KV,
        tensor=c.variant == FUSED_TENSOR,
        overlap=bool(c[OVERLAP]),
    )


def build(
    workload: AttentionWorkload, candidate: Candidate, fixed: FixedLengths | None = None
) -> Schedule:
    """The scheduled kernel of a candidate."""
    tiles = tiles_of(workload, candidate)
    problem = Problem(workload, fixed, exponent="unit", aligned=candidate["vector"])
    if tiles.split:
        return schedule_fused_split_kv(fused_split_kv(problem, tiles), candidate, tiles)
    return schedule_fused(fused(problem, tiles), candidate, tiles)


def schedule_fused(func: tirx.PrimFunc, c: Candidate, tiles: DeviceTiles) -> Schedule:
    """One block of threads a (batch, query head, block of queries)."""
    sch = Schedule(func, enable_check=False)
    task = _launch(sch, "O")
    place(sch, ("LSE", "N"), task)
    for name in present(sch, ("LSE", "N")):
        in_registers(sch, name, 3)
    _running_state(sch, c, tiles, task)
    return sch


def schedule_fused_split_kv(func: tirx.PrimFunc, c: Candidate, tiles: DeviceTiles) -> Schedule:
    """One block of threads a (batch, key-value head, split), then one a (batch, key-value head)."""
    sch = Schedule(func, enable_check=False)
    _running_state(sch, c, tiles, _launch(sch, "PART"))
    task = _launch(sch, "O")
    place(sch, ("LSE", "N", "OS", "TS", "MM"), task)
    for name in present(sch, ("LSE", "N")):
        in_registers(sch, name, 3)
    for name in ("MM", "TS", "OS"):
        block = sch.get_sblock(name)
        sch.set_scope(block, 0, "local")
        row, column, *own, split = sch.get_loops(block)[-5 if name == "OS" else -4 :]
        sch.reorder(row, column, split, *own)
        bind(sch, row, column)
        unroll(sch, *own)
        sch.decompose_reduction(block, split)
    return sch


def _launch(sch: Schedule, name: str) -> Any:
    """Blocks and threads of a stage (task..., row thread, column thread, row, column). Returns the
    innermost loop over tasks."""
    *task, row, column, own, last = sch.get_loops(sch.get_sblock(name))
    for loop, axis in zip(task, "zyx", strict=False):  # lowering makes one axis of them
        sch.bind(loop, f"blockIdx.{axis}")
    bind(sch, row, column)
    unroll(sch, own, last)
    return task[-1]


def _running_state(sch: Schedule, c: Candidate, tiles: DeviceTiles, task: Any) -> None:
    """The loop over blocks of keys inside a task, and the sums of its rows."""
    place(sch, ("LT", "LS", "R"), task)
    in_registers(sch, "LT", 4)
    sch.decompose_reduction(sch.get_sblock("LT"), sch.get_loops(sch.get_sblock("LT"))[-1])
    shared_copy(sch, "LS")
    R = sch.get_sblock("R")
    i0, c0, i1, kb = sch.get_loops(R)[-4:]
    sch.reorder(kb, i0, c0, i1)
    annotate(sch, kb, {"key_block": tiles.key_block})
    place(sch, _BLOCK_STAGES, kb)
    place(sch, ("QT",), task)
    bind(sch, i0, c0)
    sch.unroll(i1)
    for field in range(tiles.columns + 2):
        sch.set_scope(R, field, "local")
    sch.decompose_reduction(R, kb)
    for name in ("SC", "P"):
        in_registers(sch, name, 4)
    for name in ("MP", "M", "LP"):
        in_registers(sch, name, 4)
        sch.decompose_reduction(sch.get_sblock(name), sch.get_loops(sch.get_sblock(name))[-1])
    if tiles.tensor:
        for name in ("ST", "OT"):
            tensor_product(sch, name)
    else:
        product(sch, "ST", c["score_steps"])
        product(sch, "OT", c["value_steps"])
    if present(sch, ("OX",)):
        repair(sch)
    shared_copy(sch, "MS")
    if tiles.tensor:
        rounded_weights(sch)
    else:
        weights(sch)
    for name in ("QT", "KT", "VT"):
        whole = min(c["vector"], MOST_LOADED) if name == "QT" else c["vector"]
        staged(sch, name, tiles, whole)
