"""The loops of a task in TIR with what they read and write: which elements, by which loop variables."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import tvm
from tvm import tirx

from tvm_attention.modelling.nests import Access, Nest

_TASK = "task"  # tvm_attention.lowering.distribution
Values = dict[Any, int]


def nest_of(body: Any, sizes: Mapping[str, int]) -> Nest:
    """The loops of a task's body; ``sizes`` has what scalars and strides are by name."""
    reader = _Reader(sizes)
    whole = Nest("task", 1)
    reader.walk(body, whole, [])
    return whole


class _Reader:
    def __init__(self, sizes: Mapping[str, int]) -> None:
        self._sizes = sizes
        self._values: Values = {}  # of variables that are bound, all loops at their start
        self._binds: dict[Any, Any] = {}
        self._task: dict[int, int] = {}  # the numbers that make up the task's own
        self._number = 0

    def walk(self, stmt: Any, nest: Nest, loops: list[tuple[Any, str, int]]) -> None:
        """Adds what a statement does to the nest that it stands in."""
        if isinstance(stmt, tirx.SeqStmt):
            for s in stmt.seq:
                self.walk(s, nest, loops)
        elif isinstance(stmt, tirx.For):
            self._loop(stmt, nest, loops)
        elif isinstance(stmt, tirx.IfThenElse):
            taken = stmt.then_case if self._value(stmt.condition) else stmt.else_case
            if taken is not None:
                self.walk(taken, nest, loops)
        elif isinstance(stmt, tirx.Bind):
            self._binds[stmt.var] = stmt.value
            self._loads(stmt.value, nest, loops)
        elif isinstance(stmt, tirx.BufferStore) and stmt.buffer.name == _TASK:
            self._task[self._value(stmt.indices[0])] = self._value(stmt.value)
        elif isinstance(stmt, tirx.BufferStore):
            self._access(stmt.buffer, stmt.indices, nest, loops, written=True)
            self._loads(stmt.value, nest, loops)
        elif isinstance(stmt, tirx.Evaluate):
            self._loads(stmt.value, nest, loops)
        elif isinstance(stmt, tirx.AttrStmt):
            self.walk(stmt.body, nest, loops)

    def _loop(self, stmt: Any, nest: Nest, loops: list[tuple[Any, str, int]]) -> None:
        turns = max(self._value(stmt.extent), 0)
        self._number += 1
        inner = Nest(f"{stmt.loop_var.name} {self._number}", turns)
        self._values[stmt.loop_var] = 0
        self.walk(stmt.body, inner, [*loops, (stmt.loop_var, inner.name, turns)])
        if turns:
            nest.inner.append(inner)

    def _loads(self, value: Any, nest: Nest, loops: list[tuple[Any, str, int]]) -> None:
        if hasattr(value, "source"):  # a load; a shuffle of vectors has indices, too
            self._access(value.source, value.indices, nest, loops, written=False)
            return
        if isinstance(value, tvm.ir.Call):
            for argument in value.args:
                self._loads(argument, nest, loops)
            return
        for part in ("a", "b", "value", "condition", "true_value", "false_value"):
            if hasattr(value, part):
                self._loads(getattr(value, part), nest, loops)

    def _access(
        self,
        buffer: Any,
        indices: Any,
        nest: Nest,
        loops: list[tuple[Any, str, int]],
        *,
        written: bool,
    ) -> None:
        if buffer.scope() == "local" or buffer.name == _TASK:
            return
        size = int(tvm.DataType(str(buffer.dtype)).bits) // 8
        place = self._place(buffer, indices)
        base = place()
        steps = {}
        for variable, name, turns in loops:
            if turns > 1:
                self._values[variable] = 1
                step = place() - base
                self._values[variable] = 0
                if step:
                    steps[name] = step * size
        lanes = next((int(i.lanes) for i in indices if isinstance(i, tirx.Ramp)), 1)
        nest.accesses.append(Access(buffer.name, base * size, lanes * size, steps, written))

    def _place(self, buffer: Any, indices: Any) -> Callable[[], int]:
        """The number of the first element, given what the variables are."""
        extents = [self._value(e) for e in buffer.shape]

        def place() -> int:
            number = 0
            for index, extent in zip(indices, extents, strict=True):
                number = number * extent + self._value(index)
            return number

        return place

    def _value(self, e: Any) -> int:
        if isinstance(e, tirx.IntImm):
            return int(e)
        if isinstance(e, tirx.Var):
            if e in self._values:
                return self._values[e]
            if e in self._binds:
                return self._value(self._binds[e])
            return self._sizes.get(e.name, 1)
        if isinstance(e, tirx.Ramp):
            return self._value(e.base)
        if isinstance(e, tirx.Cast):
            return self._value(e.value)
        if isinstance(e, tirx.Select):
            return self._value(e.true_value if self._value(e.condition) else e.false_value)
        operator = _OPERATORS.get(type(e))
        if operator is not None:
            return operator(self._value(e.a), self._value(e.b))
        if isinstance(e, tvm.ir.Call):
            return self._call(e)
        if hasattr(e, "source") and e.source.name == _TASK:
            return self._task.get(self._value(e.indices[0]), 0)
        return 0  # what lies in memory

    def _call(self, e: Any) -> int:
        name = str(e.op.name) if hasattr(e.op, "name") else ""
        values = [self._value(a) for a in e.args]
        if name.endswith("shift_right"):
            return values[0] >> values[1]
        if name.endswith("shift_left"):
            return values[0] << values[1]
        return 0


_OPERATORS: dict[Any, Callable[[int, int], int]] = {
    tirx.Add: lambda a, b: a + b,
    tirx.Sub: lambda a, b: a - b,
    tirx.Mul: lambda a, b: a * b,
    tirx.FloorDiv: lambda a, b: a // b,
    tirx.FloorMod: lambda a, b: a % b,
    tirx.Div: lambda a, b: a // b,
    tirx.Mod: lambda a, b: a % b,
    tirx.Min: min,
    tirx.Max: max,
    tirx.LT: lambda a, b: a < b,
    tirx.LE: lambda a, b: a <= b,
    tirx.GT: lambda a, b: a > b,
    tirx.GE: lambda a, b: a >= b,
    tirx.EQ: lambda a, b: a == b,
    tirx.NE: lambda a, b: a != b,
    tirx.And: lambda a, b: bool(a and b),
    tirx.Or: lambda a, b: bool(a or b),
}
