"""From lowered functions to machine code, by TVM's own pipeline less the passes that ours has done."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import tvm

from tvm_attention.lowering import instructions
from tvm_attention.target import HardwareTarget

instructions.register()

# Of TVM's default passes. The first would resize buffers: they were compacted before the loops were narrowed.
# The others find nothing in such functions, or what LLVM finds too: without them the kernels are as fast or
# faster, and one of unrolled matrix tiles is built in half the time. (CommonSubexprElim is not among them:
# without it masked kernels take an eighth longer.)
_DONE_OR_NEEDLESS = [
    "s_tir.CompactBufferAllocation",
    "s_tir.StmtSimplify",
    "s_tir.InjectPermutedLayout",
    "s_tir.InjectVirtualThread",
    "s_tir.HoistIfThenElse",
    "s_tir.RenormalizeSplitPattern",
    "tirx.RemoveNoOp",
]


def compiled(functions: Mapping[str, Any], target: HardwareTarget) -> Any:
    """The executable of functions that ``lower`` made (and others as plain), for a target."""
    with tvm.transform.PassContext(disabled_pass=_DONE_OR_NEEDLESS):
        return tvm.compile(tvm.IRModule(dict(functions)), tvm.target.Target(target.llvm()))
