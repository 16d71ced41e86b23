"""The calling convention: plain addresses, scalars and strides (tvm_attention.arguments).

A call then costs no tensor conversion and no views, and C can make it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import tvm
from tvm import tirx

from tvm_attention.arguments import SCALARS, STORAGE, STRIDES, TENSORS, extras
from tvm_attention.compute import Bounds
from tvm_attention.compute.operand import FLAT_SIZE, offset_of
from tvm_attention.lowering.memory import pointer
from tvm_attention.lowering.statements import inside, load_of, sequence
from tvm_attention.workload import AttentionWorkload


def pointer_function(
    func: tirx.PrimFunc,
    body: Any,
    workspace: Any,
    symbols: Mapping[str, Any],
    w: AttentionWorkload,
    outputs: Outputs,
) -> tirx.PrimFunc:
    """A function of addresses, :data:`SCALARS`, strides and extras around a kernel's statements, whose
    stores :class:`Outputs` has redirected."""
    added = extras(w)
    buffers = {n: symbols[n] for n in TENSORS[:3]} | {"out": outputs.out}
    buffers |= {e.name: symbols[e.name] for e in added if e.buffer and e.name != "lse"}
    if any(e.name == "lse" for e in added):
        buffers["lse"] = outputs.lse
    addresses, prologue = {}, []
    for name, buffer in buffers.items():
        addresses[name] = tirx.Var(f"{name}_address", "int64")
        kind = pointer(buffer.dtype)
        handle = tirx.Var(f"{name}_data", kind)
        prologue.append(tirx.Bind(handle, tirx.reinterpret(kind, addresses[name])))
        prologue.append(tirx.DeclBuffer(buffer, data=handle))
    strides = [symbols[f"{n}_{a}_stride"] for n in TENSORS[:3] for a in STRIDES]
    params = [addresses[n] for n in TENSORS] + [workspace, *(symbols[n] for n in SCALARS)]
    params += [*strides, *outputs.strides]
    known = {v.name: v for v in outputs.lse_strides} | dict(symbols)
    params += [addresses[e.name] if e.buffer else known[e.name] for e in added]
    whole: Any = tirx.SeqStmt([*prologue, body])
    # Workspace allocation asks which device it is for; with tensors TVM would read that off the first.
    for key, value in (("device_type", 1), ("device_id", 0)):
        whole = tirx.AttrStmt(tvm.ir.StringImm("default"), key, tirx.const(value, "int32"), whole)
    return tirx.PrimFunc(params, whole, func.ret_type, func.attrs)


def _flat(name: str, dtype: str) -> Any:
    size = (tirx.const(FLAT_SIZE, "int64"),)
    return tirx.decl_buffer(size, STORAGE[dtype], name=name, layout=None)


class Outputs:
    """Stores to the dense output become stores through the caller's strides; the log-sum-exp that a
    row's result hangs from is stored beside it. The output is "O" (batch, head, row, column) or, of
    decoding kernels, "OG" (batch, key-value head, row of its group, column)."""

    def __init__(self, symbols: Mapping[str, Any], bounds: Bounds, w: AttentionWorkload) -> None:
        self.grouped = "OG" in symbols
        self._dense = symbols["OG" if self.grouped else "O"]
        self._symbols, self._bounds, self._ragged = symbols, bounds, w.ragged
        self.out, self.lse = _flat("out", w.dtype), _flat("lse", "float32")
        self.strides = [tirx.Var(f"out_{axis}_stride", "int64") for axis in STRIDES]
        self.lse_strides = [tirx.Var(f"lse_{axis}_stride", "int64") for axis in ("batch", "head")]

    def redirect(self, s: Any) -> Any:
        """The statement with its stores to the output replaced."""
        if isinstance(s, tirx.BufferStore) and s.buffer.same_as(self._dense):
            return self._store(s)
        return inside(s, self.redirect)

    def _store(self, s: Any) -> Any:
        b, h, i, column = s.indices
        if self.grouped:
            length = self._symbols["query_length"]
            h = h * self._symbols["group"] + tirx.truncdiv(i, length)
            i = tirx.truncmod(i, length)
        row = self._bounds.query_start(b) + i
        place = offset_of((b, h, row), self.strides)
        stores = [tirx.BufferStore(self.out, s.value, [place + tirx.Cast("int64", column)])]
        lse = load_of("LSE", s.value)
        if lse is not None:
            place = offset_of((b, h, row), (*self.lse_strides, tirx.const(1, "int64")))
            stores.append(tirx.BufferStore(self.lse, lse, [place]))
        if self.grouped and self._ragged:
            # Rows beyond a sequence's own stand between those of a group.
            return tirx.IfThenElse(i < self._bounds.queries(b), sequence(stores), None)
        return sequence(stores)
