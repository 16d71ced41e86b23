"""What a GPU kernel need not do with a block of keys.

A row's maximum goes on from the blocks before, so that weights are what they are at the end of the block and
its sums are added as they are. Where every row of the task sees every key of the block, scores
are not compared with limits, and no masked value can have spoilt a sum.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import tvm
from tvm import tirx

from tvm_attention.device_code import POWER_OF_TWO
from tvm_attention.errors import KernelBuildError
from tvm_attention.lowering.statements import inside, rebuilt

Stages = Mapping[str, Any]  # buffers by the names of stages


def running(stmts: list[Any], stages: Stages) -> list[Any]:
    """Statements of a block of keys, with maxima M that begin with those of R."""
    return [_running(s, stages) for s in stmts]


def _running(stmt: Any, stages: Stages) -> Any:
    M, top = stages["M"], stages["R.v0"]
    if isinstance(stmt, tirx.Bind):
        return tirx.Bind(stmt.var, rebuilt(stmt.value, lambda e: _merged(e, stages)))
    if not isinstance(stmt, tirx.BufferStore):
        return inside(stmt, lambda s: _running(s, stages))
    if stmt.buffer.same_as(M) and not _is_load_of(getattr(stmt.value, "a", None), M):
        own = [*[0] * (len(top.shape) - 1), stmt.indices[-1]]
        return tirx.BufferStore(M, tirx.BufferLoad(top, own), stmt.indices)
    value = rebuilt(stmt.value, lambda e: _merged(e, stages))
    return tirx.BufferStore(stmt.buffer, value, stmt.indices)


def _merged(e: Any, stages: Stages) -> Any:
    """The merging of a block with those before, whose maximum is not greater."""
    M, top = stages["M"], stages["R.v0"]
    if isinstance(e, tirx.Max) and _is_load_of(e.a, top) and _is_load_of(e.b, M):
        return e.b
    if isinstance(e, tirx.Mul) and _is_power(e.b) and _is_load_of(e.b.args[-1].a, M):
        return rebuilt(e.a, lambda x: _merged(x, stages))  # times one
    repaired = isinstance(e, tirx.Select) and "OX" in stages
    return e.true_value if repaired and _is_load_of(e.true_value, stages["OT"]) else None


def _is_power(e: Any) -> bool:
    """Whether it is 2 to the power of a difference."""
    return (
        isinstance(e, tvm.ir.Call)
        and str(getattr(e.args[0], "value", "")) == POWER_OF_TWO
        and isinstance(e.args[-1], tirx.Sub)
    )


def _is_load_of(e: Any, buffer: Any) -> bool:
    return hasattr(e, "indices") and bool(e.source.same_as(buffer))


def unless_whole(
    stmts: list[Any], stages: Stages, whole: Any, repair: tuple[str, ...]
) -> list[Any]:
    """Statements of a block of keys, with comparisons, and stages of the ``repair``, where it is not
    ``whole``."""
    made: list[Any] = []
    for stmt in stmts:
        if stores_to(stmt, stages["SC"]):
            stmt = tirx.IfThenElse(whole, _unlimited(stmt), stmt)
        elif any(stores_to(stmt, stages[n]) for n in repair if n in stages):
            stmt = tirx.IfThenElse(tirx.Not(whole), stmt, None)
        made.append(stmt)
    return made


def _unlimited(stmt: Any) -> Any:
    """A store of scores without what compares keys with limits."""
    if not isinstance(stmt, tirx.BufferStore):
        return inside(stmt, _unlimited)
    value = stmt.value
    while isinstance(value, tirx.Select) and _is_minus_infinity(value.false_value):
        value = value.true_value
    if value is stmt.value:
        raise KernelBuildError(f"scores: expected a comparison with limits, got {value}")
    return tirx.BufferStore(stmt.buffer, value, stmt.indices)


def _is_minus_infinity(e: Any) -> bool:
    return isinstance(e, tirx.FloatImm) and float(e.value) == -math.inf


def stores_to(stmt: Any, buffer: Any) -> bool:
    """Whether a statement stores into a buffer."""
    if isinstance(stmt, tirx.BufferStore):
        return bool(stmt.buffer.same_as(buffer))
    found: list[bool] = []

    def look(within: Any) -> Any:
        found.append(stores_to(within, buffer))
        return within

    inside(stmt, look)
    return any(found)
