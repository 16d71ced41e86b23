"""Loop nests that multiply matrices of bfloat16, by vector instructions in place of a matrix unit."""

from __future__ import annotations

from typing import Any

import tvm
from tvm import tirx

from tvm_attention.lowering.bfmmla_ir import product_ir
from tvm_attention.lowering.matrix_ir import fill_ir
from tvm_attention.lowering.matrix_unit import MatrixUnit


class Bfmmla(MatrixUnit):
    """A matrix unit's calls (tvm_attention.lowering.matrix_unit), answered by BFMMLA: inlined, and with
    nothing to set up for a task."""

    def session(self, stmts: list[Any]) -> list[Any]:
        return stmts

    def linked(self, stmt: Any) -> Any:
        if not self.is_used:
            return stmt
        for code in [fill_ir("alwaysinline"), *(product_ir(use[0]) for use in sorted(self._used))]:
            text = tvm.ir.StringImm(code)
            stmt = tirx.AttrStmt(tvm.ir.StringImm("import"), "pragma_import_llvm", text, stmt)
        return stmt
