"""Loops over the lanes of vectors become shuffles: sums, or maxima, of the lanes of one vector or of several.

A schedule annotates with ``lanes_added`` the loop over the lanes, around a store ``sum = sum + term`` or
``sum = max(sum, term)`` of neighbours. It annotates with ``keys_added`` the loop outside it over as many
vectors as their results fill one. Those are added two by two, each time to half as many vectors of sums
of half as many lanes, so that 16 vectors of 16 lanes take 15 additions and 30 shuffles: one by one they would
take 64 of each, and memory between them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tvm
from tvm import tirx

from tvm_attention.lowering.statements import (
    inside,
    loads,
    neighbours,
    sequence,
    statements,
)

Operation = Callable[[Any, Any], Any]


def by_lanes(stmt: Any) -> Any:
    """The statement with its annotated loops replaced."""
    notes = stmt.annotations if isinstance(stmt, tirx.For) else {}
    if "keys_added" in notes:
        return _of_keys(stmt)
    if "lanes_added" in notes:
        return _of_one(stmt)
    return inside(stmt, by_lanes)


def _of_one(lanes: Any) -> Any:
    store, operation, load = _sum(lanes)
    width = int(lanes.extent)
    binds, vector = _bound(neighbours(load, {lanes.loop_var: 0}, width))
    while width > 1:
        width //= 2
        halves = (_shuffled([vector], range(n * width, (n + 1) * width)) for n in (0, 1))
        bind, vector = _bound(operation(*halves))
        binds += bind
    return sequence([*binds, tirx.BufferStore(store.buffer, vector, store.indices)])


def _of_keys(keys: Any) -> Any:
    lanes = statements(keys.body)[-1]
    store, operation, load = _sum(lanes)
    count, width = int(keys.extent), int(lanes.extent)
    stmts: list[Any] = []

    def loaded(key: int) -> Any:
        return neighbours(load, {keys.loop_var: key, lanes.loop_var: 0}, width)

    # Vectors of as many lanes as there are keys: of one key, or of those that lie ``width`` apart.
    vectors = []
    for first in range(width):
        parts = [loaded(key) for key in range(first, count, width)]
        whole = parts[0] if len(parts) == 1 else _shuffled(parts, range(count))
        bind, vector = _bound(whole)
        stmts += bind
        vectors.append(vector)
    while width > 1:
        width //= 2
        pairs = zip(vectors[:width], vectors[width:], strict=True)
        added = [_bound(_added(operation, a, b, width, count)) for a, b in pairs]
        stmts += [s for bind, _ in added for s in bind]
        vectors = [vector for _, vector in added]
    result = neighbours(tirx.BufferLoad(store.buffer, store.indices), {keys.loop_var: 0}, count)
    return sequence([*stmts, tirx.BufferStore(store.buffer, vectors[0], result.indices)])


def _added(operation: Operation, a: Any, b: Any, width: int, count: int) -> Any:
    """Sums of ``width`` neighbours and the next ``width``: of a, of b, of a again and so on. Those that
    keep their lanes are blended, which takes less than a shuffle."""
    first = [lane % (2 * width) < width for lane in range(count)]
    kept = [lane if mine else count + lane for lane, mine in enumerate(first)]
    moved = [lane + width if mine else count + lane - width for lane, mine in enumerate(first)]
    return operation(_shuffled([a, b], kept), _shuffled([a, b], moved))


def _sum(lanes: Any) -> tuple[Any, Operation, Any]:
    """The store inside a loop, what it adds by, and the load of what it adds."""
    store = statements(lanes.body)[-1]  # after the store of the first value, which nobody needs
    operation = tirx.max if isinstance(store.value, tirx.Max) else _plus
    [load] = [x for x in loads(store.value) if not x.source.same_as(store.buffer)]
    return store, operation, load


def _plus(a: Any, b: Any) -> Any:
    return a + b


def _shuffled(vectors: list[Any], lanes: Any) -> Any:
    return tirx.Shuffle(vectors, [tirx.const(lane, "int32") for lane in lanes])


def _bound(vector: Any) -> tuple[list[Any], Any]:
    """A statement that gives a vector a name, and the name: what is used twice is computed once."""
    variable = tirx.Var("lanes", tvm.ir.PrimType(str(vector.ty.dtype)))
    return [tirx.Bind(variable, vector)], variable
