"""The part of a kernel's module that lets its parallel loops be redirected."""

from __future__ import annotations

from importlib.resources import files
from typing import TYPE_CHECKING

from tvm_attention._tvm import import_tvm

if TYPE_CHECKING:
    from tvm.tirx import PrimFunc

BIND_FUNCTION = "bind_launch"
"""Name under which a kernel's IRModule holds :func:`bind_function`."""


def bind_function() -> PrimFunc:
    """The function ``bind_launch(address: int64)`` for a kernel's IRModule (llvm target): after a
    call the kernel's parallel loops run through the launch function at that address."""
    import_tvm()
    from tvm import ir, tirx

    source = files(__package__).joinpath("bind.ll").read_text()
    address = tirx.Var("address", "int64")
    store = tirx.Evaluate(tirx.call_extern("int32", "set_parallel_launch", address))
    body = tirx.AttrStmt(ir.StringImm("import"), "pragma_import_llvm", ir.StringImm(source), store)
    return tirx.PrimFunc([address], body).with_attrs(
        {"global_symbol": BIND_FUNCTION, "tirx.noalias": True}
    )
