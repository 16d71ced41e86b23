"""What fused attention on a GPU does with one block of keys: scores, their maxima, weighted values.

On tensor cores queries, keys, values and weights are in shared memory as 16-bit numbers, as they are stored;
products are summed in float32 and scaled after.
"""

from __future__ import annotations

from typing import Any

from tvm import te, tirx

from tvm_attention.arguments import STORAGE
from tvm_attention.compute.device import LANES, Tasks, column_of, key_of, row_of
from tvm_attention.compute.operand import as_float32, as_stored
from tvm_attention.compute.problem import Problem, float32
from tvm_attention.compute.scores import modified

Index = tuple[Any, ...]


def scores(p: Problem, at: Tasks) -> te.Tensor:
    """Stages QT, KT, ST and SC, minus infinity beyond the last key."""
    t = at.tiles

    def query(*index: Any) -> Any:
        *task, row, d = index
        head, i = at.query(tuple(task), row)
        element = p.query(task[0], head, i, d, raw=t.tensor)
        inside = i < p.bounds.queries(task[0])
        scaled = element if t.tensor else element * p["scale_log2"]
        return tirx.if_then_else(inside, scaled, _zero(p, t.tensor))

    QT = te.compute((*at.outer, t.query_block, p.head_dim), query, name="QT")

    def key(*index: Any) -> Any:
        *task, kb, j, d = index
        return _stored(p, at, "key", tuple(task), at.key(tuple(task), kb, j), d)

    KT = te.compute((*at.outer, at.key_blocks, t.key_block, p.head_dim), key, name="KT")
    d = te.reduce_axis((0, p.head_dim), "d")

    def product(*index: Any) -> Any:
        *task, kb, i0, j0, i1, j1 = index
        q, k = QT(*task, row_of(t, i0, i1), d), KT(*task, kb, key_of(t, j0, j1), d)
        return te.sum(_float32(p, t.tensor, q) * _float32(p, t.tensor, k), axis=d)

    shape = (*at.outer, at.key_blocks, t.row_threads, t.column_threads, t.rows, t.keys)
    ST = te.compute(shape, product, name="ST")

    def score(*index: Any) -> Any:
        *outer, kb, i0, j0, i1, j1 = index
        task = tuple(outer)
        head, i = at.query(task, row_of(t, i0, i1))
        n = at.key(task, kb, key_of(t, j0, j1))
        scaled = ST[index] * p["scale_log2"] if t.tensor else ST[index]
        masked = modified(p, task[0], head, i, n, scaled)
        return tirx.Select(n < p.bounds.keys(task[0]), masked, float32(float("-inf")))

    return te.compute(shape, score, name="SC")


# How much less than a row's maximum is subtracted from its scores, where weights become float16: they are
# then numbers down to 2**-32 of the greatest and not 2**-25, which counts in rows of many small ones. Were it
# greater, the greatest could be 2**16 where huge maxima are rounded, which is infinite.
_HEADROOM = 7.0


def maxima(at: Tasks, outer: Index, SC: te.Tensor) -> te.Tensor:
    """Stages MP (over a thread's keys), MS (the same where all threads see it, less _HEADROOM) and M, of a
    row's keys."""
    t = at.tiles
    j, n = te.reduce_axis((0, t.keys), "j_max"), te.reduce_axis((0, t.column_threads), "n")
    own = (*outer, t.row_threads, t.column_threads, t.rows)
    MP = te.compute(own, lambda *i: te.max(SC(*i, j), axis=j), name="MP")

    def seen(*index: Any) -> Any:
        *task, i1, i0, j0 = index
        greatest = MP(*task, i0, j0, i1)
        narrow = t.tensor and at.p.workload.dtype == "float16"
        return greatest - float32(_HEADROOM) if narrow else greatest

    MS = te.compute((*outer, t.rows, t.row_threads, t.column_threads), seen, name="MS")

    def row(*index: Any) -> Any:
        *task, i0, _, i1 = index
        return te.max(MS(*task, i1, i0, n), axis=n)

    return te.compute(own, row, name="M")


def weighted(p: Problem, at: Tasks, outer: Index, P: te.Tensor) -> Any:
    """Stages PS, VT and OT, the weighted values of a block of keys: ``columns(*index, c)``.

    Where keys are masked: FLAG, NaN where a row of OT holds a NaN, and OX, the sum without the terms of
    weight zero, which times a masked NaN or Inf are NaN. Lowering computes it only where FLAG says so.
    """
    t = at.tiles
    weight_of = _shared_weights(p, at, outer, P)
    width = t.columns * t.column_threads

    def value(*index: Any) -> Any:
        *task, kb, j, column = index
        element = _stored(p, at, "value", tuple(task), at.key(tuple(task), kb, j), column)
        if width == p.value_dim:
            return element
        return tirx.if_then_else(column < p.value_dim, element, _zero(p, t.tensor))

    VT = te.compute((*outer, t.key_block, width), value, name="VT")

    def term(index: Index, j: Any) -> tuple[Any, Any]:
        *task, i0, c0, i1, c = index
        v = VT(*task, j, column_of(t, c0, c))
        return weight_of(tuple(task), i0, i1, j), _float32(p, t.tensor, v)

    j1, j2 = (te.reduce_axis((0, t.key_block), n) for n in ("j_value", "j_again"))
    shape = (*outer, t.row_threads, t.column_threads, t.rows, t.columns)

    def product(*index: Any) -> Any:
        w, v = term(index, j1)
        return te.sum(w * v, axis=j1)

    OT = te.compute(shape, product, name="OT")
    if not p.workload.masks:
        return lambda *index: OT[index]
    c = te.reduce_axis((0, t.columns), "c")
    FLAG = te.compute(shape[:-1], lambda *i: te.sum(OT(*i, c), axis=c), name="FLAG")

    def visible(*index: Any) -> Any:
        w, v = term(index, j2)
        return te.sum(tirx.if_then_else(w > float32(0.0), w * v, float32(0.0)), axis=j2)

    OX = te.compute(shape, visible, name="OX")
    return lambda *index: tirx.Select(
        FLAG[index[:-1]] <= float32(float("inf")), OT[index], OX[index]
    )


def _shared_weights(p: Problem, at: Tasks, outer: Index, P: te.Tensor) -> Any:
    """Stage PS, the weights where all threads see them: ``weight_of(task, i0, i1, j)``, of key j of a
    block. Its axes are those of the threads and of what they own, in the order of rows and keys."""
    t = at.tiles
    if not t.tensor:
        shape = (t.rows, t.row_threads, t.keys, t.column_threads)
        PS = te.compute(
            (*outer, *shape), lambda *i: P(*i[:-4], i[-3], i[-1], i[-4], i[-2]), name="PS"
        )

        def plain(task: Index, i0: Any, i1: Any, j: Any) -> Any:
            j1, j0 = tirx.floordiv(j, t.column_threads), tirx.floormod(j, t.column_threads)
            return PS(*task, i1, i0, j1, j0)

        return plain

    def rounded(*index: Any) -> Any:
        *task, warp, i1, lane, n, j0, e = index
        return as_stored(P(*task, warp * LANES + lane, j0, i1, n * 2 + e), p.workload.dtype)

    axes = (t.row_threads // LANES, t.rows, LANES, t.keys // 2, t.column_threads, 2)
    PT = te.compute((*outer, *axes), rounded, name="PS")

    def narrow(task: Index, i0: Any, i1: Any, j: Any) -> Any:
        warp, lane = tirx.floordiv(i0, LANES), tirx.floormod(i0, LANES)
        n, rest = tirx.floordiv(j, LANES), tirx.floormod(j, LANES)
        j0, e = tirx.floordiv(rest, 2), tirx.floormod(rest, 2)
        return _float32(p, True, PT(*task, warp, i1, lane, n, j0, e))

    return narrow


def _stored(p: Problem, at: Tasks, name: str, task: Index, key: Any, column: Any) -> Any:
    """A key's or value's element, zero beyond the last key."""
    read = p.key if name == "key" else p.value
    kv_head, raw = at.kv_head(task[1]), at.tiles.tensor
    element = read(task[0], kv_head, key, column, raw=raw)
    scale = p.scale_of(f"{name}_scale", task[0], kv_head, key)
    if scale is not None:
        element = element * scale
    return tirx.if_then_else(key < p.bounds.keys(task[0]), element, _zero(p, raw))


def _zero(p: Problem, raw: bool) -> Any:
    return tirx.const(0, STORAGE[p.workload.dtype]) if raw else float32(0.0)


def _float32(p: Problem, raw: bool, element: Any) -> Any:
    return as_float32(element, p.workload.dtype) if raw else element
