"""The ends of a decoding kernel's rows: computed by the task itself where its keys are one split.

A schedule puts a nest behind the tasks that merges their splits, and annotates its outermost loop with
``merge``: over the batch elements, then the key-value heads. It runs on one thread, after all others have
finished. Where keys are not split, which is where there are many heads or few keys, every task has all that
its own rows' ends need, and threads share that work too.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tvm import tirx

from tvm_attention.lowering.statements import sequence, statements, substituted, with_body


def finish(stmt: Any, symbols: Mapping[str, Any]) -> Any:
    """The statement with its merge, if it has one, where it belongs."""
    stmts = statements(stmt)
    merge = next((s for s in stmts if "merge" in _notes(s)), None)
    if merge is None:
        return stmt
    splits = symbols["splits"]
    changed = []
    for s in stmts:
        if "task" in _notes(s):
            s = _with_ends(s, merge, splits)
        elif s is merge:
            s = tirx.IfThenElse(splits > 1, _without_note(merge), None)
        changed.append(s)
    return sequence(changed)


def _with_ends(tasks: Any, merge: Any, splits: Any) -> Any:
    heads = tasks.body
    of_split = heads.body
    places = {merge.loop_var: tasks.loop_var, merge.body.loop_var: heads.loop_var}
    ends = substituted(merge.body.body, places)
    inside = [*statements(of_split.body), tirx.IfThenElse(splits.equal(1), ends, None)]
    return with_body(tasks, with_body(heads, with_body(of_split, sequence(inside))))


def _notes(stmt: Any) -> Mapping[str, Any]:
    return stmt.annotations if isinstance(stmt, tirx.For) else {}


def _without_note(loop: Any) -> Any:
    notes = {k: v for k, v in loop.annotations.items() if k != "merge"}
    return tirx.For(
        loop.loop_var, loop.min, loop.extent, loop.kind, loop.body, loop.thread_binding, notes
    )
