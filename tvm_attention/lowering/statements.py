"""Rebuilding TIR statements: TVM has no Python mutator for them."""

from __future__ import annotations

from typing import Any

from tvm import tirx


def with_body(loop: Any, body: Any) -> Any:
    """The loop around another body."""
    return tirx.For(
        loop.loop_var, loop.min, loop.extent, loop.kind, body, loop.thread_binding, loop.annotations
    )


def sequence(stmts: list[Any]) -> Any:
    """Statements as one; TVM forbids a sequence of one."""
    return stmts[0] if len(stmts) == 1 else tirx.SeqStmt(stmts)


def statements(stmt: Any) -> list[Any]:
    """The statements of a sequence, or the one it is."""
    return list(stmt.seq) if isinstance(stmt, tirx.SeqStmt) else [stmt]
