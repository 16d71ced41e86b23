"""One loop out of several: stages that run over the same keys run together, key by key.

TVM moves a producer under its consumer's loop only if no other stage reads it. Here a schedule marks
loops of a sequence with the same number, ``together``, and vouches that an iteration of each needs no
more of those before it than the same iteration of theirs. What lies between them, the start of a sum for
instance, must not need them; it comes first.
"""

from __future__ import annotations

from typing import Any

from tvm import tirx

from tvm_attention.lowering.statements import sequence, statements, substituted, with_body


def fuse(stmt: Any) -> Any:
    """The statement with the marked loops of every sequence made one."""
    if isinstance(stmt, tirx.For):
        return with_body(stmt, fuse(stmt.body))
    if not isinstance(stmt, tirx.SeqStmt):
        return stmt
    parts = [fuse(s) for s in stmt.seq]
    groups: dict[int, list[Any]] = {}
    for part in parts:
        if (group := _group(part)) is not None:
            groups.setdefault(group, []).append(part)
    fused = []
    for part in parts:
        group = _group(part)
        if group is None:
            fused.append(part)
        elif part is groups[group][-1]:
            fused.append(_one(groups[group]))
    return sequence(fused)


def _group(stmt: Any) -> int | None:
    notes = stmt.annotations if isinstance(stmt, tirx.For) else {}
    return int(notes["together"]) if "together" in notes else None


def _one(loops: list[Any]) -> Any:
    """A loop with the bodies of all and their annotations."""
    first, bodies = loops[0], []
    notes: dict[str, Any] = {}
    for loop in loops:
        notes |= dict(loop.annotations)
        bodies += statements(substituted(loop.body, {loop.loop_var: first.loop_var}))
    del notes["together"]
    return tirx.For(
        first.loop_var, first.min, first.extent, first.kind, sequence(bodies),
        first.thread_binding, notes,
    )  # fmt: skip
