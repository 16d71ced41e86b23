"""Operators of one element, which TVM vectorises, that some machines have an instruction for."""

from __future__ import annotations

from tvm import tirx
from tvm.ir import register_op_attr
from tvm.ir._ffi_api import RegisterOp


def elementwise(name: str) -> str:
    """Tell TVM of an operator without side effects; returns its name."""
    RegisterOp(name, "")
    register_op_attr(name, "TVectorizable", True)
    register_op_attr(name, "TCallEffectKind", tirx.expr.CallEffectKind.Pure.value)
    register_op_attr(name, "TScriptPrinterName", name)
    return name
