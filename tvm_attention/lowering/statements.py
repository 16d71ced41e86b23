"""Rebuilding TIR statements: TVM has no Python mutator for them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import tvm
from tvm import tirx
from tvm.sym import Analyzer


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


def inside(stmt: Any, rewrite: Callable[[Any], Any]) -> Any:
    """The statement with ``rewrite`` applied to the statements right inside it."""
    if isinstance(stmt, tirx.SeqStmt):
        return sequence([x for s in stmt.seq for x in statements(rewrite(s))])
    if isinstance(stmt, tirx.For):
        return with_body(stmt, rewrite(stmt.body))
    if isinstance(stmt, tirx.IfThenElse):
        other = None if stmt.else_case is None else rewrite(stmt.else_case)
        return tirx.IfThenElse(stmt.condition, rewrite(stmt.then_case), other)
    if isinstance(stmt, tirx.While):
        return tirx.While(stmt.condition, rewrite(stmt.body))
    return stmt


def without_allocations(stmt: Any, taken: list[Any]) -> Any:
    """The statement without the allocations in it, which ``taken`` gets: where it stands twice, they stand
    before."""
    if isinstance(stmt, tirx.SeqStmt):
        taken += [s for s in stmt.seq if isinstance(s, tirx.AllocBuffer)]
        others = [s for s in stmt.seq if not isinstance(s, tirx.AllocBuffer)]
        return sequence([x for s in others for x in statements(without_allocations(s, taken))])
    return inside(stmt, lambda s: without_allocations(s, taken))


def load_of(name: str, expression: Any) -> Any:
    """A load of the buffer of this name within an expression, or None."""
    if hasattr(expression, "indices"):
        return expression if expression.source.name == name else None
    found = (load_of(name, child) for child in children(expression))
    return next((load for load in found if load is not None), None)


def first_load(expression: Any, but: tuple[str, ...]) -> Any:
    """The first load within an expression of a buffer of none of these names, or None."""
    if hasattr(expression, "indices"):
        return None if expression.source.name in but else expression
    found = (first_load(child, but) for child in children(expression))
    return next((load for load in found if load is not None), None)


def rebuilt(expression: Any, change: Callable[[Any], Any]) -> Any:
    """The expression with ``change`` applied, from the root down, to what it does not return None for; the
    indices of loads stay as they are."""
    changed = change(expression)
    if changed is not None:
        return changed
    before = children(expression)
    parts = [rebuilt(child, change) for child in before]
    if all(new is old for new, old in zip(parts, before, strict=True)):
        return expression
    if isinstance(expression, tvm.ir.Call):
        return tvm.ir.Call(expression.op, parts, expression.attrs, ret_ty=expression.ty)
    if isinstance(expression, tirx.Cast):
        return tirx.Cast(expression.ty.dtype, *parts)
    if isinstance(expression, tirx.Let):
        return tirx.Let(expression.var, *parts)
    return type(expression)(*parts)  # arithmetic, comparisons, Select


def loads(expression: Any) -> list[Any]:
    """All loads of buffers within an expression, but for those in their indices."""
    if hasattr(expression, "source"):  # a shuffle of vectors has indices, too
        return [expression]
    return [load for child in children(expression) for load in loads(child)]


def uses(expression: Any, variable: Any) -> bool:
    """Whether a variable occurs in an expression."""
    if isinstance(expression, tirx.Var):
        return bool(expression.same_as(variable))
    parts = children(expression)
    if hasattr(expression, "indices"):
        parts = [*parts, *expression.indices]
    return any(uses(part, variable) for part in parts)


def substituted(stmt: Any, places: Mapping[Any, Any]) -> Any:
    """The statement with variables replaced: TVM does that for parameters of a function."""
    return tirx.PrimFunc(list(places), stmt).specialize(dict(places)).body


def children(expression: Any) -> list[Any]:
    """What an expression is made of, but for the indices of a load."""
    parts = ("a", "b", "base", "value", "body", "condition", "true_value", "false_value")
    children = [getattr(expression, part) for part in parts if hasattr(expression, part)]
    return [*children, *getattr(expression, "args", ())]


def at(stmt: Any, places: Mapping[Any, int]) -> Any:
    """The statement with variables at these values."""
    return substituted(stmt, {v: tirx.const(n, str(v.ty)) for v, n in places.items()})


def neighbours(load: Any, places: Mapping[Any, int], count: int) -> Any:
    """The load of so many neighbours, from the one at these values of variables on."""
    *outer, last = (Analyzer().simplify(at(tirx.Evaluate(i), places).value) for i in load.indices)
    step = tirx.const(1, str(last.ty))
    return tirx.BufferLoad(load.source, [*outer, tirx.Ramp(last, step, count)])
