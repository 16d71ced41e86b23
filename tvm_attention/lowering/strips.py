"""Strips of query rows: one with fewer valid rows than it is wide runs over fewer vectors."""

from __future__ import annotations

from typing import Any

from tvm import tirx


def by_vectors(body: Any, rows: Any, size: int) -> Any:
    """The body of a strip of ``size`` rows for every number of vectors that ``rows`` may take up."""
    extents = _vector_extents(body)
    if len(extents) != 1 or not isinstance(body, tirx.SeqStmt):
        return body  # the strip is more than one register tile wide
    vectors = extents.pop()
    lanes = size // vectors
    allocations = [s for s in body.seq if isinstance(s, tirx.AllocBuffer)]
    rest: Any = tirx.SeqStmt([s for s in body.seq if not isinstance(s, tirx.AllocBuffer)])
    chosen = _with_vectors(rest, 1)
    for n in range(2, vectors + 1):
        chosen = tirx.IfThenElse(rows > (n - 1) * lanes, _with_vectors(rest, n), chosen)
    return tirx.SeqStmt([*allocations, chosen])


def _vector_extents(stmt: Any) -> set[int]:
    if isinstance(stmt, tirx.SeqStmt):
        return set().union(*map(_vector_extents, stmt.seq))
    if not isinstance(stmt, tirx.For):
        return set()
    own = {int(stmt.extent)} if "query_vectors" in stmt.annotations else set()
    return own | _vector_extents(stmt.body)


def _with_vectors(stmt: Any, n: int) -> Any:
    if isinstance(stmt, tirx.SeqStmt):
        return tirx.SeqStmt([_with_vectors(s, n) for s in stmt.seq])
    if not isinstance(stmt, tirx.For):
        return stmt
    extent = n if "query_vectors" in stmt.annotations else stmt.extent
    body = _with_vectors(stmt.body, n)
    return tirx.For(
        stmt.loop_var, stmt.min, extent, stmt.kind, body, stmt.thread_binding, stmt.annotations
    )
