"""Where a GPU's threads store what they computed: the caller's rows and columns, as far as there are such."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tvm import tirx

from tvm_attention.compute import Bounds
from tvm_attention.compute.device import DeviceTiles, column_of, row_of
from tvm_attention.compute.operand import offset_of
from tvm_attention.lowering.convention import Outputs
from tvm_attention.lowering.statements import load_of, sequence
from tvm_attention.workload import AttentionWorkload


class DeviceStores:
    """Stores of the stage O, in the order of the threads, become stores through the caller's strides."""

    def __init__(
        self,
        symbols: Mapping[str, Any],
        bounds: Bounds,
        outputs: Outputs,
        workload: AttentionWorkload,
        tiles: DeviceTiles,
    ) -> None:
        self._symbols, self._bounds, self._outputs = symbols, bounds, outputs
        self._workload, self._tiles = workload, tiles

    def _place(self, indices: list[Any]) -> tuple[Any, Any, Any, Any]:
        """Batch element, query head and query of a thread's row, and whether there is such a query."""
        b, h, *block, i0, _, i1, _ = indices
        row = row_of(self._tiles, i0, i1)
        if not self._tiles.split:
            i = block[0] * self._tiles.query_block + row
            return b, h, i, i < self._bounds.queries(b)
        length, group = self._symbols["query_length"], self._symbols["group"]
        i = tirx.truncmod(row, length)
        inside = tirx.all(row < group * length, i < self._bounds.queries(b))
        return b, h * group + tirx.truncdiv(row, length), i, inside

    def store(self, stmt: Any) -> Any:
        """A thread's element to its row and column, if there are such."""
        b, h, i, inside = self._place(list(stmt.indices))
        column = column_of(self._tiles, stmt.indices[-3], stmt.indices[-1])
        row = (b, h, self._bounds.query_start(b) + i)
        where = offset_of(row, self._outputs.strides) + tirx.Cast("int64", column)
        store: Any = tirx.BufferStore(self._outputs.out, stmt.value, [where])
        assert self._workload.value_dim is not None
        if self._tiles.columns * self._tiles.column_threads > self._workload.value_dim:
            store = tirx.IfThenElse(column < self._workload.value_dim, store, None)
        stores = [store]
        lse = load_of("LSE_local", stmt.value)
        if lse is not None:
            where = offset_of(row, (*self._outputs.lse_strides, tirx.const(1, "int64")))
            once = tirx.BufferStore(self._outputs.lse, lse, [where])
            stores.append(tirx.IfThenElse(column.equal(0), once, None))
        return tirx.IfThenElse(inside, sequence(stores), None)
