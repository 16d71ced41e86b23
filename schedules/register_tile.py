"""The register tile: the inner product both matrix products of attention are built from."""

from __future__ import annotations

from typing import Any

from tvm.s_tir import Schedule


def vectorise_last(sch: Schedule, block: Any, lanes: int, unroll: bool = False) -> None:
    """Vectorise the last loop of a block by ``lanes``."""
    outer, inner = sch.split(sch.get_loops(block)[-1], [None, lanes])
    sch.vectorize(inner)
    if unroll:
        sch.unroll(outer)


def vector_reduction(
    sch: Schedule, name: str, vectors: int, lanes: int, notes: dict[str, int]
) -> None:
    """Schedule a (..., column, key) reduction with the columns along the lanes, keys outside them."""
    block = sch.get_sblock(name)
    column, key = sch.get_loops(block)[-2:]
    outer, vector, lane = sch.split(column, [None, vectors, lanes])
    sch.reorder(outer, key, vector, lane)
    sch.unroll(vector)
    sch.vectorize(lane)
    annotate(sch, key, notes)
    sch.decompose_reduction(block, key)


def register_tile(
    sch: Schedule,
    name: str,
    rows: int,
    vectors: int,
    lanes: int,
    notes: dict[str, int],
    columns_outer: bool = False,
) -> tuple[Any, Any]:
    """Schedule a (..., row, column, k) product so that rows x vectors accumulators stay in registers.

    Each step of k broadcasts ``rows`` scalars against ``vectors`` vectors. ``columns_outer`` runs all rows
    against one strip of columns before the next strip, which keeps that strip in L1. ``notes`` annotate
    the loop over k. Returns the loops over row tiles and over column strips.
    """
    block = sch.get_sblock(name)
    row, column, k = sch.get_loops(block)[-3:]
    annotate(sch, k, notes)
    row_tile, row_in = sch.split(row, [None, rows])
    strip, vector, lane = sch.split(column, [None, vectors, lanes])
    outer = (strip, row_tile) if columns_outer else (row_tile, strip)
    sch.reorder(*outer, k, row_in, vector, lane)
    accumulator = sch.cache_write(block, 0, "local")
    sch.reverse_compute_at(accumulator, outer[1], preserve_unit_loops=True)
    copy_row, copy_column = sch.get_loops(accumulator)[-2:]
    copy_vector, copy_lane = sch.split(copy_column, [None, lanes])
    for loop in (copy_row, copy_vector, row_in, vector):
        sch.unroll(loop)
    sch.vectorize(copy_lane)
    sch.vectorize(lane)
    sch.decompose_reduction(block, k)
    return row_tile, strip


def register_tile_under(
    sch: Schedule, name: str, consumer: str, rows: int, vectors: int, lanes: int
) -> tuple[Any, Any]:
    """The same where an elementwise stage takes the product out of the accumulators."""
    row, column = sch.get_loops(sch.get_sblock(consumer))[-2:]
    row_tile, row_in = sch.split(row, [None, rows])
    strip, vector, lane = sch.split(column, [None, vectors, lanes])
    sch.reorder(row_tile, strip, row_in, vector, lane)
    product = sch.get_sblock(name)
    sch.set_scope(product, 0, "local")
    sch.compute_at(product, strip, preserve_unit_loops=True)
    product_row, product_column, k = sch.get_loops(product)[-3:]
    product_vector, product_lane = sch.split(product_column, [None, lanes])
    sch.reorder(k, product_row, product_vector, product_lane)
    for loop in (row_in, vector, product_row, product_vector):
        sch.unroll(loop)
    for loop in (vector, product_vector):
        annotate(sch, loop, {"query_vectors": 1})
    sch.vectorize(lane)
    sch.vectorize(product_lane)
    sch.decompose_reduction(product, k)
    return row_tile, strip


def transposition(sch: Schedule, name: str, size: int, lanes: int, query_axis: int) -> None:
    """Let lowering transpose a stage by tiles of ``size``, of which 4, 8 and 16 are worth it;
    ``query_axis`` says which of its last two axes runs over query rows."""
    block = sch.get_sblock(name)
    if size < 4:
        vectorise_last(sch, block, size if query_axis == 0 else lanes)
        return
    row, column = sch.get_loops(block)[-2:]
    row_tile, row_in = sch.split(row, [None, size])
    column_tile, column_in = sch.split(column, [None, size])
    sch.reorder(row_tile, column_tile, row_in, column_in)
    annotate(sch, row_tile, {"transposition": size, "query_axis": query_axis})
    for loop in (row_in, column_in):
        annotate(sch, loop, {"tile": 1})


def annotate(sch: Schedule, loop: Any, notes: dict[str, int]) -> None:
    """Mark a loop for lowering to shorten (see tvm_attention.lowering)."""
    for key, unit in notes.items():
        sch.annotate(loop, key, unit)
