"""Tasks cut into parts at run time, as many as keep all threads busy.

A task computes several strips of queries with the keys and values that it has packed: the more strips, the
less packing. How many tasks there are depends on the call, and on the machine's threads. A schedule
annotates the loop over a task's queries with ``task_strips``, how many strips it has.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tvm import tirx

from tvm_attention.compute.problem import ceil_div
from tvm_attention.lowering.statements import sequence, statements, substituted, with_body

# What a task costs beyond its strips, in strips: packing (measured on Sapphire Rapids).
_PACKING = 1


@dataclass(frozen=True)
class Parts:
    """How many parts a task has and how many strips a part: variables, and their values by a call's
    scalars."""

    count: Any
    strips: Any
    count_value: Any
    strips_value: Any

    def bound(self) -> list[Any]:
        """Statements that set the variables; by way of memory, so that TVM's simplifier does not substitute
        them everywhere."""
        held = tirx.decl_buffer((2,), "int32", name="parts", scope="local", layout=None)
        stmts: list[Any] = [tirx.AllocBuffer(held)]
        values = [(self.count, self.count_value), (self.strips, self.strips_value)]
        for n, (variable, value) in enumerate(values):
            stmts.append(tirx.BufferStore(held, value, [n]))
            stmts.append(tirx.Bind(variable, tirx.BufferLoad(held, [n])))
        return stmts


def cut(stmt: Any, symbols: Mapping[str, Any]) -> tuple[Any, Parts | None]:
    """The statement with a loop over parts inside that over tasks, if a schedule asks for it.

    The new loop takes the annotations of the old one, ``first_row`` (of a part, among the queries) and
    ``rows`` (that it has at most).
    """
    if isinstance(stmt, tirx.SeqStmt):
        both = [cut(s, symbols) for s in stmt.seq]
        parts = next((p for _, p in both if p is not None), None)
        return sequence([s for s, _ in both]), parts
    if not isinstance(stmt, tirx.For) or "task" not in stmt.annotations:
        return stmt, None
    heads = stmt.body
    queries = heads.body if isinstance(heads, tirx.For) else heads
    if not isinstance(queries, tirx.For) or "task_strips" not in queries.annotations:
        return stmt, None
    cutting = _Cutting(
        int(queries.annotations["query_block"]), int(queries.annotations["task_strips"])
    )
    notes = {**stmt.annotations, "task": int(stmt.annotations["task"]) + 1}
    body = with_body(heads, cutting.inside(queries))
    loop = tirx.For(
        stmt.loop_var, stmt.min, stmt.extent, stmt.kind, body, stmt.thread_binding, notes
    )
    return loop, cutting.parts(symbols)


class _Cutting:
    """Of tasks of ``rows`` queries in ``strips`` strips."""

    def __init__(self, rows: int, strips: int) -> None:
        self._task, self._rows, self._most = rows, rows // strips, strips
        self._count, self._strips = (
            tirx.Var(name, "int32") for name in ("parts", "strips_of_part")
        )

    def parts(self, symbols: Mapping[str, Any]) -> Parts:
        """Those with which the busiest thread does least, the fewest of them."""
        queries = symbols["query_length"]
        strips = tirx.min(ceil_div(queries, self._rows), self._most)
        heads = symbols["batch"] * symbols["query_heads"]
        tasks = heads * ceil_div(queries, self._task)

        def work(parts: int) -> Any:
            busiest = ceil_div(tasks * parts, symbols["threads"])
            return busiest * (_PACKING + ceil_div(strips, parts))

        count, least, parts = tirx.const(1, "int32"), work(1), 2
        while parts <= self._most:
            count = tirx.Select(work(parts) < least, tirx.const(parts, "int32"), count)
            least = tirx.min(work(parts), least)
            parts *= 2
        return Parts(self._count, self._strips, count, ceil_div(strips, self._count))

    def inside(self, queries: Any) -> Any:
        """The loop over tasks with one over parts in it."""
        part = tirx.Var("part", "int32")
        first = part * self._strips
        notes = {k: v for k, v in queries.annotations.items() if k != "task_strips"}
        notes["first_row"] = queries.loop_var * self._task + first * self._rows
        notes["rows"] = tirx.min(self._strips, self._most - first) * self._rows
        body = sequence([self._shifted(s, first) for s in statements(queries.body)])
        serial = tirx.ForKind.SERIAL
        parts = tirx.For(part, 0, self._count, serial, body, None, notes)
        return tirx.For(queries.loop_var, queries.min, queries.extent, queries.kind, parts)

    def _shifted(self, stmt: Any, first: Any) -> Any:
        """Loops over the task's strips and rows, counted from a part's first strip on."""
        if isinstance(stmt, tirx.SeqStmt):
            return tirx.SeqStmt([self._shifted(s, first) for s in stmt.seq])
        if not isinstance(stmt, tirx.For):
            return stmt
        rows = self._unit(stmt.annotations)
        if rows is None:
            return with_body(stmt, self._shifted(stmt.body, first))
        place = stmt.loop_var + first * (self._rows // rows)
        return with_body(stmt, substituted(stmt.body, {stmt.loop_var: place}))

    def _unit(self, notes: Mapping[str, Any]) -> int | None:
        """Rows of an iteration of a loop over a task's rows."""
        if "query_strip" in notes:
            return self._rows
        if "transposition" in notes and int(notes["query_axis"]) == 0:
            return int(notes["transposition"])
        return int(notes["valid_rows"]) if "valid_rows" in notes else None
