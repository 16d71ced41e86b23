"""Scalars of register tiles out of vector registers, for machines whose FMA takes a lane of one (NEON's FMLA
by element): four neighbours come by one load, where else each is loaded for itself.

A tile's innermost loop, as the schedules leave it, is ``for k: for row, vector unrolled: for lane vectorised:
sum += a[..., row, k] * b[k, vector, lane]``. Neighbours are four rows of a step (values: the rows are columns
of V) or, in a loop over a constant extent, four steps of a row (scores: steps run along the head dimension).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tvm import tirx
from tvm.sym import Analyzer

from tvm_attention.lowering.statements import inside, loads, sequence, substituted, uses, with_body

RUN = 4  # neighbours that one load brings


def by_element(stmt: Any) -> Any:
    """The statement with the scalars of its register tiles taken from vectors."""
    tile = _Tile.of(stmt)
    if tile is None:
        return inside(stmt, by_element)
    return tile.along_rows() or tile.along_steps() or stmt


@dataclass(frozen=True)
class _Tile:
    """The loops of a register tile and the load of its scalar."""

    steps: Any
    rows: Any
    scalar: Any  # the load
    indices: tuple[Any, ...]  # of the load, with no clamp that a tile does not cross

    @classmethod
    def of(cls, steps: Any) -> _Tile | None:
        kinds = (tirx.ForKind.SERIAL, tirx.ForKind.UNROLLED, tirx.ForKind.UNROLLED)
        loops, stmt = [], steps
        for kind in (*kinds, tirx.ForKind.VECTORIZED):
            if not isinstance(stmt, tirx.For) or int(stmt.kind) != int(kind):
                return None
            loops.append(stmt)
            stmt = stmt.body
        if not isinstance(stmt, tirx.BufferStore) or not isinstance(loops[1].extent, tirx.IntImm):
            return None
        step, row, vector, lane = (loop.loop_var for loop in loops)
        scalars = [
            load
            for load in loads(stmt.value)
            if load.source.dtype == "float32"
            and uses(load, row)
            and uses(load, step)
            and not (uses(load, vector) or uses(load, lane))
        ]
        if len(scalars) != 1:
            return None
        count = int(loops[1].extent)
        indices = tuple(_unclamped(i, row, count) for i in scalars[0].indices)
        return cls(steps, loops[1], scalars[0], indices)

    def along_rows(self) -> Any:
        """Four rows of a step by one load; None where they are not neighbours."""
        row, count = self.rows.loop_var, int(self.rows.extent)
        if count % RUN or not self._neighbours(row, count):
            return None
        stmts = []
        for first in range(0, count, RUN):
            vector, bind = self._vector({row: _int(first)})
            stmts.append(bind)
            stmts += [self._row({row: _int(first + n)}, vector, n) for n in range(RUN)]
        return with_body(self.steps, sequence(stmts))

    def along_steps(self) -> Any:
        """Four steps of each row by one load; None where they are not neighbours."""
        step, extent = self.steps.loop_var, self.steps.extent
        if not isinstance(extent, tirx.IntImm) or int(extent) % RUN:
            return None
        if not self._neighbours(step, 2 * RUN):
            return None
        outer = tirx.Var(f"{step.name}_run", "int32")
        rows = range(int(self.rows.extent))
        row, loads = self.rows.loop_var, []
        for r in rows:
            loads.append(self._vector({row: _int(r), step: outer * RUN}))
        stmts = [bind for _, bind in loads]
        for n in range(RUN):
            stmts += [
                self._row({row: _int(r), step: outer * RUN + n}, loads[r][0], n) for r in rows
            ]
        steps = self.steps
        return tirx.For(
            outer, steps.min, _int(int(extent) // RUN), steps.kind, sequence(stmts),
            steps.thread_binding, steps.annotations,
        )  # fmt: skip

    def _neighbours(self, variable: Any, count: int) -> bool:
        """Whether the scalars at 0, 1, ... of a variable lie side by side, run by run."""
        analyzer = Analyzer()
        at = [[_index(i, {variable: _int(n)}) for i in self.indices] for n in range(count)]
        for n in range(count):
            if n % RUN == 0:
                continue
            *before, last_before = at[n - 1]
            *here, last = at[n]
            same = all(analyzer.can_prove_equal(a, b) for a, b in zip(before, here, strict=True))
            if not same or not analyzer.can_prove_equal(last - last_before, 1):
                return False
        return True

    def _vector(self, places: Mapping[Any, Any]) -> tuple[Any, Any]:
        """A variable and the statement that loads four neighbours into it, from the first's place."""
        *outer, last = (_index(i, places) for i in self.indices)
        load = tirx.BufferLoad(
            self.scalar.source, [*outer, tirx.Ramp(last, tirx.const(1, str(last.ty)), RUN)]
        )
        variable = tirx.Var("run", f"float32x{RUN}")
        return variable, tirx.Bind(variable, load)

    def _row(self, places: Mapping[Any, Any], vector: Any, n: int) -> Any:
        """One row of the tile, its scalar the vector's element n."""
        element = tirx.Shuffle([vector], [_int(n)])
        vectors, lanes = self.rows.body, self.rows.body.body
        store = lanes.body
        value = _replaced(store.value, self.scalar, element)
        store = tirx.BufferStore(store.buffer, value, store.indices)
        return substituted(with_body(vectors, with_body(lanes, store)), places)


def _unclamped(expression: Any, row: Any, count: int) -> Any:
    """An index in which min(x + row, last) is min(x, last - count + 1) + row, where ``count`` rows divide
    both x and last + 1: a tile is then whole, or of rows that do not exist and nobody reads."""
    if isinstance(expression, tirx.Min) and isinstance(expression.b, tirx.IntImm):
        rows = int(expression.b) + 1
        first = _index(expression.a, {row: _int(0)})
        if uses(expression.a, row) and rows % count == 0 and _divides(count, first):
            tile = tirx.min(tirx.floordiv(first, count), rows // count - 1)
            return tile * count + row
    if isinstance(expression, (tirx.Add, tirx.Mul, tirx.FloorDiv, tirx.FloorMod)):
        a, b = (_unclamped(x, row, count) for x in (expression.a, expression.b))
        return type(expression)(a, b)
    if isinstance(expression, tirx.Cast):
        return tirx.Cast(str(expression.ty), _unclamped(expression.value, row, count))
    return expression


def _divides(count: int, expression: Any) -> bool:
    return bool(Analyzer().can_prove_equal(tirx.floormod(expression, count), 0))


def _replaced(expression: Any, load: Any, element: Any) -> Any:
    """A sum of products with a load among them replaced."""
    if expression.same_as(load):
        return element
    if not isinstance(expression, (tirx.Add, tirx.Mul)):
        return expression
    a, b = (_replaced(x, load, element) for x in (expression.a, expression.b))
    return type(expression)(a, b)


def _index(expression: Any, places: Mapping[Any, Any]) -> Any:
    value = substituted(tirx.Evaluate(expression), places).value
    return Analyzer().simplify(value)


def _int(value: int) -> Any:
    return tirx.const(value, "int32")
