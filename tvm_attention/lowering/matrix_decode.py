"""Loop nests of decoding on the matrix unit become calls of functions in LLVM IR.

A schedule annotates the task with ``decode_task``, its query rows, and the outermost loop of a nest with
``decode_queries``, which arranges queries as a right operand, ``decode_scores`` (of the loops over columns,
keys and depth) or ``decode_values`` (over rows, columns, steps and keys): how many steps ahead memory is
asked for. Keys and values are read as they lie, so that lowering needs their rows to be at one distance:
indices at the first key and at the last say how many there are.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import tvm
from tvm import tirx
from tvm.sym import Analyzer

from tvm_attention.compute.matrix_decode import KEYS, TILE_ROW
from tvm_attention.lowering.decode_scores_ir import Scores
from tvm_attention.lowering.decode_values_ir import Values
from tvm_attention.lowering.matrix_decode_ir import (
    BEGIN,
    END,
    queries_ir,
    queries_name,
    session_ir,
)
from tvm_attention.lowering.statements import (
    inside,
    load_of,
    loads,
    sequence,
    statements,
    substituted,
    with_body,
)


class MatrixDecode:
    """Rewrites the annotated nests of one kernel; ``strides`` are the elements from a row of keys and of
    values to the next."""

    def __init__(self, strides: Mapping[str, Any]) -> None:
        self._strides = strides
        self._code: dict[str, str] = {}

    def rewrite(self, stmt: Any) -> Any:
        """The statement with its annotated nests replaced."""
        notes = stmt.annotations if isinstance(stmt, tirx.For) else {}
        if "decode_queries" in notes:
            return self._queries(stmt)
        if "decode_scores" in notes:
            return self._scores(stmt, int(notes["decode_scores"]))
        if "decode_values" in notes:
            return self._values(stmt, int(notes["decode_values"]))
        if "decode_task" not in notes:
            return inside(stmt, self.rewrite)
        body = statements(self.rewrite(stmt.body))
        rows, columns = int(notes["decode_task"]), int(notes["decode_columns"])
        self._code[BEGIN] = session_ir(rows, columns)
        return with_body(stmt, sequence([_call(BEGIN), *body, _call(END)]))

    def linked(self, stmt: Any) -> Any:
        """The statement with the functions it calls linked into its module."""
        for name in sorted(self._code):
            text = tvm.ir.StringImm(self._code[name])
            stmt = tirx.AttrStmt(tvm.ir.StringImm("import"), "pragma_import_llvm", text, stmt)
        return stmt

    def _queries(self, nest: Any) -> Any:
        loops, store = _nest(nest)
        start = dict.fromkeys((loop.loop_var for loop in loops), 0)
        *_, words, columns, _ = (int(n) for n in store.buffer.shape)
        [source] = loads(store.value)
        self._code[queries_name(columns)] = queries_ir(columns)
        addresses = _address(source, start), _address(store, start)
        return _call(queries_name(columns), *addresses, tirx.const(words, "int64"))

    def _scores(self, nest: Any, ahead: int) -> Any:
        loops, store = _nest(nest)
        key, queries = (load_of(name, store.value) for name in ("key", "QB"))
        size = _bytes(key)
        depth = int(queries.source.shape[-3]) * 4
        columns = int(queries.source.shape[-2])
        function = Scores(columns, depth // TILE_ROW, size == 1, ahead)
        self._code[function.name] = function.code()
        start = dict.fromkeys((loop.loop_var for loop in loops), 0)
        end = {**start, loops[1].loop_var: KEYS - 1}
        return _call(
            function.name,
            _address(key, start),
            self._strides["key"] * size,
            _span(key, start, end),
            _address(queries, start),
            _address(store, start),
        )

    def _values(self, nest: Any, ahead: int) -> Any:
        loops, store = _nest(nest)
        value, weights = (load_of(name, store.value) for name in ("value", "PW"))
        *_, rows, columns = (int(n) for n in store.buffer.shape)
        function = Values(rows, columns, ahead)
        self._code[function.name] = function.code()
        steps = loops[2].extent
        start = dict.fromkeys((loop.loop_var for loop in loops), 0)
        end = {**start, loops[2].loop_var: steps - 1, loops[3].loop_var: KEYS - 1}
        return _call(
            function.name,
            _address(value, start),
            self._strides["value"] * 2,
            _span(value, start, end),
            steps,
            _address(weights, start),
            _address(store, start),
        )


def _nest(loop: Any) -> tuple[list[Any], Any]:
    """Loops and the store inside, but for that which begins a sum."""
    loops = []
    while not isinstance(loop, tirx.BufferStore):
        if isinstance(loop, tirx.SeqStmt):
            loop = loop.seq[-1]
            continue
        loops.append(loop)
        loop = loop.body
    return loops, loop


def _placed(access: Any, places: Any) -> list[Any]:
    """Indices of a load or store with variables of the nest at these values."""
    values = {
        v: tirx.const(place, str(v.ty)) if isinstance(place, int) else place
        for v, place in places.items()
    }
    simplify = Analyzer().simplify
    return [simplify(substituted(tirx.Evaluate(i), values).value) for i in access.indices]


def _address(access: Any, places: Any) -> Any:
    buffer = access.buffer if isinstance(access, tirx.BufferStore) else access.source
    return tirx.address_of(tirx.BufferLoad(buffer, _placed(access, places)))


def _span(load: Any, start: Any, end: Any) -> Any:
    """Bytes from the first key's row to the last's."""
    [first], [last] = _placed(load, start), _placed(load, end)
    return (last - first) * _bytes(load)


def _bytes(load: Any) -> int:
    return int(tvm.DataType(str(load.source.dtype)).bits) // 8


def _call(name: str, *arguments: Any) -> Any:
    return tirx.Evaluate(tirx.call_extern("int32", name, *arguments))
