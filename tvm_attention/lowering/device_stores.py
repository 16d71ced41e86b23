"""Where a GPU's threads store what they computed: the caller's rows and columns, as far as there are such."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tvm import tirx

from tvm_attention.compute import Bounds
from tvm_attention.compute.device import DeviceTiles, column_of, row_of
from tvm_attention.compute.operand import offset_of
from tvm_attention.lowering.convention import Outputs
from tvm_attention.lowering.statements import load_of, sequence
from tvm_attention.workload import AttentionWorkload


@dataclass(frozen=True)
class DeviceStores:
    """Stores of the stage O, in the order of the threads, become stores through the caller's strides."""

    symbols: Mapping[str, Any]
    bounds: Bounds
    outputs: Outputs
    workload: AttentionWorkload
    tiles: DeviceTiles

    def _place(self, indices: list[Any]) -> tuple[Any, Any, Any, Any]:
        """Batch element, query head and query of a thread's row, and whether there is such a query."""
        b, h, *block, i0, _, i1, _ = indices
        row = row_of(self.tiles, i0, i1)
        if not self.tiles.split:
            i = block[0] * self.tiles.query_block + row
            return b, h, i, i < self.bounds.queries(b)
        length, group = self.symbols["query_length"], self.symbols["group"]
        i = tirx.truncmod(row, length)
        inside = tirx.all(row < group * length, i < self.bounds.queries(b))
        return b, h * group + tirx.truncdiv(row, length), i, inside

    def store(self, stmt: Any) -> Any:
        """A thread's element to its row and column, if there are such."""
        b, h, i, inside = self._place(list(stmt.indices))
        column = column_of(self.tiles, stmt.indices[-3], stmt.indices[-1])
        row = (b, h, self.bounds.query_start(b) + i)
        where = offset_of(row, self.outputs.strides) + tirx.Cast("int64", column)
        store: Any = tirx.BufferStore(self.outputs.out, stmt.value, [where])
        assert self.workload.value_dim is not None
        if self.tiles.columns * self.tiles.column_threads > self.workload.value_dim:
            store = tirx.IfThenElse(column < self.workload.value_dim, store, None)
        stores = [store]
        lse = load_of("LSE_local", stmt.value)
        if lse is not None:
            where = offset_of(row, (*self.outputs.lse_strides, tirx.const(1, "int64")))
            once = tirx.BufferStore(self.outputs.lse, lse, [where])
            stores.append(tirx.IfThenElse(column.equal(0), once, None))
        return tirx.IfThenElse(inside, sequence(stores), None)
