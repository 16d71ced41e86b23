"""The calling convention: plain addresses, scalars and strides.

A call then costs no tensor conversion and no views, and C can make it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import tvm
from tvm import tirx

from tvm_attention.compute import SCALARS, STRIDES, TENSORS
from tvm_attention.compute.problem import FLAT_SIZE
from tvm_attention.lowering.memory import POINTER
from tvm_attention.lowering.statements import with_body


def pointer_function(
    func: tirx.PrimFunc, stmts: list[Any], workspace: Any, symbols: Mapping[str, Any]
) -> tirx.PrimFunc:
    """A function of addresses, :data:`SCALARS` and strides around a kernel's statements."""
    buffers = dict(zip(TENSORS, (symbols[n] for n in (*TENSORS[:3], "O")), strict=True))
    out_strides = [tirx.Var(f"out_{axis}_stride", "int64") for axis in STRIDES]
    strided = tirx.decl_buffer(
        (tirx.const(FLAT_SIZE, "int64"),), "float32", name="out", layout=None
    )
    stmts = [_store_strided(s, buffers["out"], strided, out_strides) for s in stmts]
    buffers["out"] = strided
    addresses, prologue = [], []
    for name, buffer in buffers.items():
        address, handle = tirx.Var(f"{name}_address", "int64"), tirx.Var(f"{name}_data", POINTER)
        addresses.append(address)
        prologue.append(tirx.Bind(handle, tirx.reinterpret(POINTER, address)))
        prologue.append(tirx.DeclBuffer(buffer, data=handle))
    strides = [symbols[f"{n}_{a}_stride"] for n in TENSORS[:3] for a in STRIDES]
    params = [*addresses, workspace, *(symbols[n] for n in SCALARS), *strides, *out_strides]
    whole: Any = tirx.SeqStmt([*prologue, *stmts])
    # Workspace allocation asks which device it is for; with tensors TVM would read that off the first.
    for key, value in (("device_type", 1), ("device_id", 0)):
        whole = tirx.AttrStmt(tvm.ir.StringImm("default"), key, tirx.const(value, "int32"), whole)
    return tirx.PrimFunc(params, whole, func.ret_type, func.attrs)


def _store_strided(stmt: Any, dense: Any, strided: Any, strides: list[Any]) -> Any:
    """Replace stores to the dense output by stores through the caller's strides."""

    def visit(s: Any) -> Any:
        if isinstance(s, tirx.SeqStmt):
            return tirx.SeqStmt([visit(x) for x in s.seq])
        if isinstance(s, tirx.For):
            return with_body(s, visit(s.body))
        if isinstance(s, tirx.IfThenElse):
            other = None if s.else_case is None else visit(s.else_case)
            return tirx.IfThenElse(s.condition, visit(s.then_case), other)
        if isinstance(s, tirx.BufferStore) and s.buffer.same_as(dense):
            *outer, column = (tirx.Cast("int64", i) for i in s.indices)
            index = sum((i * w for i, w in zip(outer, strides, strict=True)), column)
            return tirx.BufferStore(strided, s.value, [index])
        return s

    return visit(stmt)
