"""From a GPU schedule to device functions: one axis of blocks, exact key loops, the caller's tensors.

The counterpart of :func:`tvm_attention.lowering.lower` for kernels that a grid of thread blocks runs.
Schedules mark what is done here:

===============  ===========================================================================
``key_block``    the loop over blocks of that many keys: those that the block's rows see
``if_nan``       rows of the stage OX, computed only where FLAG is NaN; OX takes the place of OT
``tensor_product``  a nest that becomes a call: of the stage ST (0) or OT (1)
===============  ===========================================================================
"""

from __future__ import annotations

from typing import Any

import tvm
from tvm import tirx
from tvm.s_tir import transform

from tvm_attention.compute import Bounds
from tvm_attention.compute.device import KV_HEAD, LANES, DeviceTiles, split_blocks
from tvm_attention.compute.operand import FLAT_SIZE, is_nan
from tvm_attention.compute.problem import ceil_div
from tvm_attention.device_code import KNOWN, TENSOR_PRODUCT, WEIGHTED_ROWS
from tvm_attention.lowering.convention import Outputs
from tvm_attention.lowering.device_stores import DeviceStores
from tvm_attention.lowering.key_loop import KeyLoop, shown
from tvm_attention.lowering.statements import sequence, statements, with_body
from tvm_attention.workload import AttentionWorkload

_AXES = ("blockIdx.z", "blockIdx.y", "blockIdx.x")  # of the schedules, outermost first


def lower_device(func: tirx.PrimFunc, workload: AttentionWorkload, tiles: DeviceTiles) -> Any:
    """The block-free function of a scheduled kernel on the caller's tensors; grids have one axis.

    Its parameters are the buffers query, key, value, out, the scalars, strides and extras of
    tvm_attention.arguments, and where there are two grids a workspace of float32.
    """
    blocks = _lower_blocks(tvm.IRModule({"main": func}))["main"]
    symbols = {p.name: p for p in blocks.params}
    bounds = Bounds(workload, symbols, lambda i: tirx.BufferLoad(symbols["ragged"], [i]))
    outputs = Outputs(symbols, bounds, workload)
    device = _Device(DeviceStores(symbols, bounds, outputs, workload, tiles))
    body = device.rewrite(blocks.body)
    given = [p for p in blocks.params if p.name not in ("O", KV_HEAD)] + [
        outputs.out,
        *outputs.strides,
    ]
    if workload.output == "attention_and_lse":
        given += [outputs.lse, *outputs.lse_strides]
    if tiles.split:
        given.append(device.workspace)
    return tirx.PrimFunc(given, body, blocks.ret_type, blocks.attrs)


def _lower_blocks(mod: tvm.IRModule) -> tvm.IRModule:
    """TVM's default passes up to LowerOpaqueBlock: thread loops are launches, annotations survive."""
    for step in (
        transform.CanonicalizeLoop(),
        transform.LowerInitBlock(),
        transform.PlanAndUpdateBufferAllocationLocation(),
        transform.ConvertBlocksToOpaque(),
        transform.LiftThreadBinding(),
        transform.CompactBufferAllocation(),
        transform.UnifyThreadBinding(),
        transform.LowerMatchBuffer(),
        transform.StmtSimplify(),
        transform.LowerOpaqueBlock(),
    ):
        mod = step(mod)
    return mod


def _known(index: Any) -> Any:
    """An index of blocks, computed once: what TVM knows to be pure it writes wherever it is used, and
    NVIDIA's compiler then divides there, in every block of keys."""
    return tirx.max(tirx.call_extern("int32", KNOWN, index), 0)  # says that it is not negative


class _Device:
    """Rewrites the launches, the annotated loops and the stores of the result."""

    def __init__(self, stores: DeviceStores) -> None:
        self._stores, self._symbols, self._bounds = stores, stores.symbols, stores.bounds
        self._workload, self._tiles = stores.workload, stores.tiles
        size = (tirx.const(FLAT_SIZE, "int64"),)
        self.workspace = tirx.decl_buffer(size, "float32", name="workspace", layout=None)
        self._launch: dict[str, Any] = {}  # axis of the schedule: its launch
        self._stages: dict[str, Any] = {}  # name of a stage: its buffer
        self._staged: Any = None

    def rewrite(self, stmt: Any) -> Any:
        """The statement with what is marked replaced."""
        if isinstance(stmt, tirx.SeqStmt):
            return sequence(self._sums([x for s in stmt.seq for x in statements(self.rewrite(s))]))
        if isinstance(stmt, tirx.AttrStmt):
            return self._attribute(stmt)
        if isinstance(stmt, tirx.AllocBuffer):
            return self._allocation(stmt)
        if isinstance(stmt, tirx.For):
            return self._loop(stmt)
        if isinstance(stmt, tirx.IfThenElse):
            other = None if stmt.else_case is None else self.rewrite(stmt.else_case)
            return tirx.IfThenElse(stmt.condition, self.rewrite(stmt.then_case), other)
        if isinstance(stmt, tirx.BufferStore) and stmt.buffer.same_as(self._symbols["O"]):
            return self._stores.store(stmt)
        return stmt

    def _sums(self, stmts: list[Any]) -> list[Any]:
        """Statements, with a wait behind what tells other threads a row's sums."""
        sums = self._stages.get("LS")
        return stmts if sums is None else shown(stmts, sums, self._tiles.column_threads)

    def _attribute(self, stmt: Any) -> Any:
        """Launches of blocks along several axes become one along x: the others end at 65535 blocks."""
        axis = stmt.node.thread_tag if stmt.attr_key == "thread_extent" else ""
        if axis not in _AXES:
            return tirx.AttrStmt(stmt.node, stmt.attr_key, stmt.value, self.rewrite(stmt.body))
        if axis == _AXES[0]:
            self._launch = {}
        self._launch[axis] = stmt
        body = self.rewrite(stmt.body)
        if axis != _AXES[0]:
            return body
        launches = [self._launch[a] for a in _AXES if a in self._launch]
        blocks, binds = tirx.const(1, "int32"), []
        task = tirx.Var("task", "int32")
        for launch in reversed(launches):
            index = tirx.truncmod(tirx.truncdiv(task, blocks), launch.value)
            if launch is launches[-1] and self._workload.causal and not self._tiles.split:
                index = (
                    launch.value - 1 - index
                )  # the last rows see most keys: they are begun first
            binds.append(tirx.Bind(launch.node.var, _known(index)))
            blocks = blocks * launch.value
        if KV_HEAD in self._symbols:
            head = tirx.truncdiv(self._launch[_AXES[1]].node.var, self._symbols["group"])
            binds.append(tirx.Bind(self._symbols[KV_HEAD], _known(head)))
        grid = tirx.IterVar(None, task, tirx.IterVar.ThreadIndex, "blockIdx.x")
        return tirx.AttrStmt(grid, "thread_extent", blocks, sequence([*binds, *statements(body)]))

    def _allocation(self, stmt: Any) -> Any:
        name = stmt.buffer.name.removesuffix("_local").removesuffix("_shared.dyn")
        self._stages[name] = stmt.buffer
        if name == "OX":
            return tirx.DeclBuffer(stmt.buffer, data=self._stages["OT"].data)
        if name == "MS":  # in the memory of the sums, which a row's threads tell each other later
            return tirx.DeclBuffer(stmt.buffer, data=self._stages["LS"].data)
        if name in ("KT", "VT") and self._tiles.overlap:
            return stmt
        if name == "KT":
            return self._keys_or_values(stmt.buffer)
        if name == "VT":
            return tirx.DeclBuffer(stmt.buffer, data=self._staged.data)
        if stmt.buffer.scope() == "global":  # what one grid leaves to the next
            return tirx.DeclBuffer(stmt.buffer, data=self.workspace.data)
        return stmt

    def _keys_or_values(self, keys: Any) -> Any:
        """Shared memory for a block of keys, in whose place its values are loaded."""
        t = self._tiles
        values = t.columns * t.column_threads + (LANES if t.tensor else 0)
        size = t.key_block * max(int(keys.strides[-2]), values)
        self._staged = tirx.decl_buffer(
            (size,), keys.dtype, name="keys_or_values", scope=keys.scope(), layout=None
        )
        declared = tirx.DeclBuffer(keys, data=self._staged.data)
        return sequence([tirx.AllocBuffer(self._staged), declared])

    def _loop(self, loop: Any) -> Any:
        notes = dict(loop.annotations)
        if "tensor_product" in notes:
            return self._tensor_product("OT" if int(notes["tensor_product"]) else "ST")
        body = self.rewrite(loop.body)
        if notes.pop("if_nan", None) is not None:
            flag = self._stages["FLAG"]
            index = [*[0] * (len(flag.shape) - 1), loop.loop_var]
            body = tirx.IfThenElse(is_nan(tirx.BufferLoad(flag, index)), body, None)
        if notes.pop("key_block", None) is None:
            return with_body(loop, body)
        first, end = self._key_blocks()
        start = tirx.const(0, "int32") if first is None else first
        count = end if first is None else tirx.max(end - first, 0)
        t, whole = self._tiles, self._whole(loop.loop_var)
        blocks = KeyLoop(self._stages, t.column_threads, whole, in_registers=t.tensor)
        return sequence(blocks.lowered(with_body(loop, body), start, count, t.overlap))

    def _tensor_product(self, name: str) -> Any:
        """The stage ST or OT as the call of a function of tensor_cores.cuh, in place of its loops."""
        t, stages = self._tiles, self._stages
        kind = {"float16": "half", "bfloat16": "ushort"}[self._workload.dtype]
        columns = stages["VT" if name == "OT" else "KT"]
        stride, staged = int(columns.strides[-2]), columns if t.overlap else self._staged
        if name == "OT":
            function, other = WEIGHTED_ROWS, stages["P"]
            sizes = [t.rows, t.columns // 2, t.key_block, stride]
        else:
            function, other = TENSOR_PRODUCT, stages["QT"]
            sizes = [t.rows, t.keys // 2, self._workload.head_dim, int(other.strides[-2]), stride]
        function = f"{function}<{', '.join(map(str, (kind, *sizes)))}>"
        given = (stages[name].access_ptr("w"), other.access_ptr("r"), staged.access_ptr("r"))
        return tirx.Evaluate(tirx.call_extern("int32", function, *given))

    def _whole(self, block: Any) -> Any:
        """Whether every row of the task sees every key of a block; None where that hangs on a mask."""
        if self._workload.mask is not None:
            return None
        b, _, index = (self._launch[axis].node.var for axis in _AXES)
        bounds, size = self._bounds, self._tiles.key_block
        start = index * self._tiles.query_block
        last = tirx.min(start + self._tiles.query_block, bounds.queries(b)) - 1
        key = block * size
        if self._tiles.split:
            start, last = 0, self._symbols["query_length"] - 1
            key += bounds.first_key(b, 0)
            key += index * split_blocks(bounds, self._symbols, size, b) * size
        whole = key + size <= bounds.end_key(b, start)
        first = bounds.first_key(b, last)
        return whole if isinstance(first, int) else tirx.all(whole, first <= key)

    def _key_blocks(self) -> tuple[Any, Any]:
        """The first block of keys that any row of the task sees (None for 0) and the one after the last."""
        b, _, index = (self._launch[axis].node.var for axis in _AXES)
        bounds, size = self._bounds, self._tiles.key_block
        if self._tiles.split:
            blocks = split_blocks(bounds, self._symbols, size, b)
            end = bounds.end_key(b, self._symbols["query_length"] - 1)
            left = end - bounds.first_key(b, 0) - index * blocks * size
            return None, tirx.min(blocks, ceil_div(tirx.max(left, 0), size))
        start = index * self._tiles.query_block
        last = tirx.min(start + self._tiles.query_block, bounds.queries(b)) - 1
        first = bounds.first_key(b, start)
        end = ceil_div(tirx.max(bounds.end_key(b, last), 0), size)
        if self._workload.ragged:  # a batch element may have fewer rows than there are blocks for
            end = tirx.Select(start < bounds.queries(b), end, 0)
        return None if isinstance(first, int) else tirx.floordiv(first, size), end
