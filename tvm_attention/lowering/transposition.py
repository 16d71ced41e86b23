"""Loop nests that transpose become calls of the tile function (tvm_attention.lowering.tile_ir).

A schedule annotates the outermost loop of a nest around one store ``target[..., x, y] = source[..., y, x] *
factors[...]`` with ``transposition``, the size of its tiles, and ``query_axis``: which of x (0) and y (1)
runs over query rows. The loops inside a tile are annotated ``tile``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import tvm
from tvm import tirx

from tvm_attention.compute.problem import ceil_div
from tvm_attention.lowering.statements import first_load, load_of
from tvm_attention.lowering.tile_ir import function_name, transposition_ir
from tvm_attention.lowering.unmasked_tiles import UnmaskedTile

FACTORS = ("N", "SCALE", "ONES")


class Transposition:
    """Rewrites the annotated nests of one kernel; ``row_strides`` and ``dtypes`` are those of its
    operands by name, other buffers are dense and float32."""

    def __init__(self, row_strides: Mapping[str, Any], dtypes: Mapping[str, str]) -> None:
        self._row_strides, self._dtypes = row_strides, dtypes
        self._used: set[tuple[int, str, str]] = set()
        self.unmasked: UnmaskedTile | None = None  # the tile of scores whose mask is transposed

    def rewrite(self, nest: Any, rows: Any, keys: Any) -> Any:
        """The nest as calls; ``rows`` query rows are valid and, for a mask, ``keys`` of its columns."""
        size = int(nest.annotations["transposition"])
        axis = int(nest.annotations["query_axis"])
        tiles = [nest.loop_var, nest.body.loop_var]
        left = rows - tiles[axis] * size
        if axis == 0:  # rows of the result
            extent = tirx.min(nest.extent, ceil_div(tirx.max(rows, 0), size))
            nest = tirx.For(
                nest.loop_var, nest.min, extent, nest.kind, nest.body, None, nest.annotations
            )
        valid = (left, size) if axis == 0 else (size, left)
        columns = size if keys is None else keys - tiles[0] * size
        return self._tiles(nest, size, (*valid, columns))

    def linked(self, stmt: Any) -> Any:
        """The statement with the functions it calls linked into its module."""
        for size, source, target in sorted(self._used):
            code = tvm.ir.StringImm(transposition_ir(size, source, target))
            stmt = tirx.AttrStmt(tvm.ir.StringImm("import"), "pragma_import_llvm", code, stmt)
        return stmt

    def _tiles(self, stmt: Any, size: int, valid: tuple[Any, Any, Any]) -> Any:
        if isinstance(stmt, tirx.For):
            body = self._tiles(stmt.body, size, valid)
            extent = 1 if "tile" in stmt.annotations else stmt.extent
            return tirx.For(stmt.loop_var, stmt.min, extent, tirx.ForKind.SERIAL, body)
        if isinstance(
            stmt, tirx.IfThenElse
        ):  # a tile's rows beyond the end, which the call is told of
            return self._tiles(stmt.then_case, size, valid)
        source = first_load(stmt.value, FACTORS)
        factors = (load_of(name, stmt.value) for name in FACTORS)
        factor = next((x for x in factors if x is not None), source)  # a mask has none
        target = tirx.BufferLoad(stmt.buffer, stmt.indices)
        read, written = (self._dtypes.get(b.name, "float32") for b in (source.source, stmt.buffer))
        strides = [self._row_strides.get(b.name, b.shape[-1]) for b in (source.source, stmt.buffer)]
        self._used.add((size, read, written))
        target_rows, source_rows, source_columns = valid
        call = tirx.call_extern(
            "int32",
            function_name(size, read, written),
            tirx.address_of(source),
            tirx.Cast("int64", strides[0]),
            tirx.max(source_rows, 1),
            source_columns,
            tirx.address_of(target),
            tirx.Cast("int64", strides[1]),
            target_rows,
            tirx.address_of(factor),
        )
        return tirx.Evaluate(call) if self.unmasked is None else self.unmasked.noted(call)
