"""From a schedule to the function that is compiled: exact loop extents, threads, plain pointers.

Tuning and the loader both lower through :func:`lower`, so what was measured is what runs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import tvm
from tvm import tirx
from tvm.s_tir import transform

from tvm_attention.arguments import SCALARS
from tvm_attention.compute import Bounds
from tvm_attention.compute.problem import LAST_KEY
from tvm_attention.lowering.bfmmla import Bfmmla
from tvm_attention.lowering.carrying import carry
from tvm_attention.lowering.convention import Outputs, pointer_function
from tvm_attention.lowering.distribution import distribute, with_counters
from tvm_attention.lowering.dots import Dots
from tvm_attention.lowering.elements import by_element
from tvm_attention.lowering.finishing import finish
from tvm_attention.lowering.fusing import fuse
from tvm_attention.lowering.halves import by_halves
from tvm_attention.lowering.in_place import in_place
from tvm_attention.lowering.lane_sums import by_lanes
from tvm_attention.lowering.matrix_decode import MatrixDecode
from tvm_attention.lowering.matrix_unit import MatrixUnit
from tvm_attention.lowering.memory import (
    place_in_workspace,
    place_workers,
    take_allocations,
    tiles_on_stack,
)
from tvm_attention.lowering.narrowing import Narrowing
from tvm_attention.lowering.overwriting import overwrite
from tvm_attention.lowering.pair_tiles import PairTiles
from tvm_attention.lowering.parts import Parts, cut
from tvm_attention.lowering.prefetching import with_prefetches
from tvm_attention.lowering.scopes import Scopes
from tvm_attention.lowering.spans import Scope
from tvm_attention.lowering.statements import sequence, statements
from tvm_attention.lowering.transposition import Transposition
from tvm_attention.workload import AttentionWorkload

__all__ = ["LoweredKernel", "lower"]


@dataclass(frozen=True)
class LoweredKernel:
    """``main`` computes; ``workspace`` takes the scalars and returns the bytes ``main`` needs; ``parts`` are
    those that tasks are cut into."""

    main: tirx.PrimFunc
    workspace: tirx.PrimFunc
    parts: Parts | None


def lower(
    func: tirx.PrimFunc,
    workload: AttentionWorkload,
    *,
    element_operand: bool = False,
    bfmmla: bool = False,
    all_in_workspace: bool = False,
    first_apart: bool = True,
) -> LoweredKernel:
    """Lower a scheduled kernel to a function of pointers and scalars.

    Parameters are the int64 addresses of query, key, value, out and a 64-byte aligned workspace, then
    :data:`SCALARS`, then the (batch, head, row) strides in elements of query, key, value and out as
    int64, then what the workload's features add (:func:`tvm_attention.arguments.extras`).
    ``element_operand``: the machine's FMA takes scalars from lanes of vectors. ``bfmmla``: it has BFMMLA in
    place of a matrix unit.
    ``all_in_workspace``: the workers' own tensors too, which TVM's runtime would otherwise provide.
    ``first_apart``: the first block of keys is summed in code of its own (tvm_attention.lowering.carrying).
    """
    blocks = _lower_blocks(tvm.IRModule({"main": func}))["main"]
    symbols = {p.name: p for p in blocks.params}
    bounds = Bounds(workload, symbols, lambda i: tirx.BufferLoad(symbols["ragged"], [i]))
    outputs = Outputs(symbols, bounds, workload)
    strides = {n: symbols[f"{n}_row_stride"] for n in ("query", "value")}
    strides["out"] = outputs.strides[2]
    dtypes = dict.fromkeys(strides, workload.dtype)
    if workload.mask is not None:
        strides["mask"], dtypes["mask"] = symbols["mask_row_stride"], f"mask_{workload.mask}"
    transposition, pair_tiles = Transposition(strides, dtypes), PairTiles(strides)
    matrix_unit = Bfmmla() if bfmmla else MatrixUnit()
    scopes = Scopes(symbols, bounds, workload.ragged)
    narrowing = Narrowing(scopes, transposition, pair_tiles, matrix_unit, symbols.get(LAST_KEY))
    fused = fuse(outputs.redirect(blocks.body))
    carried = carry(overwrite(fused) if outputs.grouped else fused, first_apart)
    whole, parts = cut(in_place(carried), symbols)
    body = finish(narrowing.rewrite(whole, Scope()), symbols)
    if element_operand:
        body = by_element(body)
    dots = Dots()
    decode = MatrixDecode({n: symbols[f"{n}_row_stride"] for n in ("key", "value")})
    body = decode.rewrite(by_lanes(by_halves(dots.rewrite(body))))
    body = tiles_on_stack(distribute(with_prefetches(body), symbols, workload))
    shared: list[Any] = []
    rest = statements(take_allocations(body, shared))
    workspace = tirx.Var("workspace_address", "int64")
    prologue, size = place_in_workspace(shared, workspace)
    if all_in_workspace:
        workers, own = place_workers(sequence(rest), workspace + size, symbols["threads"])
        rest, size = [workers], size + own
    if parts is not None:
        prologue += [tiles_on_stack(s) for s in parts.bound()]
    counted = with_counters(sequence([*prologue, *rest]))
    tiles = pair_tiles.linked(transposition.linked(dots.linked(counted)))
    linked = matrix_unit.linked(decode.linked(tiles))
    main = pointer_function(blocks, linked, workspace, symbols, workload, outputs)
    # Bodies for different numbers of vectors share their loop variables until here.
    main = tirx.transform.ConvertSSA()(tvm.IRModule({"main": main}))["main"]
    total = tirx.PrimFunc(
        [symbols[n] for n in SCALARS], tirx.Return(size), tvm.ir.PrimType("int64")
    )
    # Every function of the module must say noalias: one without it, and TVM lets LLVM assume that all of
    # them alias, which keeps accumulators in memory and halves the speed.
    total = total.with_attrs({"global_symbol": "workspace", "tirx.noalias": True})
    return LoweredKernel(main, total, parts)


def _lower_blocks(mod: tvm.IRModule) -> tvm.IRModule:
    """TVM's default passes up to LowerOpaqueBlock: buffers have their full sizes, annotations survive.

    CompactBufferAllocation must run before loops are narrowed: it would size buffers by task.
    """
    for step in (
        transform.CanonicalizeLoop(),
        transform.LowerInitBlock(),
        transform.PlanAndUpdateBufferAllocationLocation(),
        transform.ConvertBlocksToOpaque(),
        transform.CompactBufferAllocation(),
        transform.LowerMatchBuffer(),
        transform.StmtSimplify(),
        transform.LowerOpaqueBlock(),
    ):
        mod = step(mod)
    return mod
