"""From a device function on the caller's tensors to CUDA source, and what is launched of it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

import tvm
from tvm import tirx
from tvm.s_tir import transform
from tvm.s_tir.analysis import verify_gpu_code

from tvm_attention.device_code import DeviceCode, DeviceFunction
from tvm_attention.errors import KernelBuildError
from tvm_attention.lowering.statements import statements

_DEVICE_CALL = 2  # TVM's calling convention of a function that a grid runs


def device_source(
    func: tirx.PrimFunc, target: dict[str, Any], name: str
) -> tuple[DeviceCode, list[Any]]:
    """CUDA source of a function lowered by tvm_attention.lowering.device, whose kernels are called ``name``
    and a number, and TVM's functions of these. ``target`` is the argument of tvm.target.Target."""
    text, kernels = generated(func, target, name)
    functions = tuple(_described(f) for f in kernels)
    # One block a multiprocessor may take all registers: without the number, some compilers keep room for
    # more and spill.
    text = re.sub(r"__launch_bounds__\((\d+)\)", r"__launch_bounds__(\1, 1)", text)
    return DeviceCode(text[text.index('extern "C" __global__') :], functions), kernels


def generated(func: tirx.PrimFunc, target: dict[str, Any], name: str) -> tuple[str, list[Any]]:
    """What TVM's generator of the target's kind, "cuda" or "opencl", writes, and the functions that are
    kernels in order of their launches."""
    made_for = tvm.target.Target(target, host={"kind": "llvm"})
    module = tvm.IRModule({name: func.with_attr("global_symbol", name)})
    module = tirx.transform.BindTarget(made_for)(module)
    for step in _steps():
        module = step(module)
    kernels = {
        variable: f
        for variable, f in sorted(module.functions_items(), key=lambda item: item[0].name_hint)
        if int(f.attrs.get("calling_conv", 0)) == _DEVICE_CALL
    }
    device = tvm.IRModule(kernels)
    for step in (
        tirx.transform.LowerWarpMemory(),
        tirx.transform.StmtSimplify(),
        tirx.transform.LowerIntrin(),
    ):
        device = step(device)
    build = tvm.get_global_func(f"target.build.{target['kind']}")
    return str(build(device, made_for).inspect_source()), list(kernels.values())


def _steps() -> tuple[Any, ...]:
    """TVM's default passes after LowerOpaqueBlock that these functions need."""
    t = tirx.transform
    return (
        t.FlattenBuffer(),
        t.NarrowDataType(32),
        t.VectorizeLoop(True),
        t.StorageRewrite(),
        t.UnrollLoop(),
        transform.RenormalizeSplitPattern(),
        t.StmtSimplify(),
        t.RemoveNoOp(),
        transform.RewriteUnsafeSelect(),
        t.VerifyMemory(),
        t.AnnotateEntryFunc(),
        # Where threads wait for each other is said by tvm_attention.lowering.key_loop: TVM's own pass takes
        # all shared memory for one buffer and lets them wait twice as often.
        transform.MergeSharedMemoryAllocations(),
        t.SplitHostDevice(),
    )


def _described(func: Any) -> DeviceFunction:
    threads, shared = {"threadIdx.x": 1, "threadIdx.y": 1}, 0
    for stmt in _nested(func.body):
        if isinstance(stmt, tirx.AttrStmt) and stmt.attr_key == "thread_extent":
            if stmt.node.thread_tag in threads:
                threads[stmt.node.thread_tag] = int(stmt.value)
        elif isinstance(stmt, tirx.AllocBuffer) and stmt.buffer.scope() == "shared.dyn":
            shared += int(stmt.buffer.shape[0]) * (tvm.DataType(str(stmt.buffer.dtype)).bits // 8)
    names = tuple(p.name.removesuffix("_ptr") for p in func.params)
    name = str(func.attrs["global_symbol"])
    return DeviceFunction(name, names, (threads["threadIdx.x"], threads["threadIdx.y"]), shared)


def _nested(stmt: Any) -> Iterator[Any]:
    """A statement and those within it, outermost first."""
    for s in statements(stmt):
        yield s
        for part in ("body", "then_case", "else_case"):
            if getattr(s, part, None) is not None:
                yield from _nested(getattr(s, part))


def _one_block(stmt: Any) -> Any:
    """The statement launched on a grid of one block: TVM verifies no other size than a number."""
    if isinstance(stmt, tirx.SeqStmt):
        return tirx.SeqStmt([_one_block(s) for s in stmt.seq])
    if isinstance(stmt, tirx.AttrStmt):
        blocks = stmt.attr_key == "thread_extent" and stmt.node.thread_tag == "blockIdx.x"
        size = tirx.const(1, "int32") if blocks else stmt.value
        return tirx.AttrStmt(stmt.node, stmt.attr_key, size, _one_block(stmt.body))
    return stmt


def check_limits(code: DeviceCode, kernels: Sequence[Any], threads: int, shared: int) -> None:
    """Raises KernelBuildError for a kernel with a block of more threads or bytes of shared memory, of which
    TVM is asked, too."""
    limits = {"max_threads_per_block": threads, "max_shared_memory_per_block": shared}
    for func, described in zip(kernels, code.functions, strict=True):
        if described.shared_bytes <= shared and verify_gpu_code(
            func.with_body(_one_block(func.body)), limits
        ):
            continue
        raise KernelBuildError(
            f"kernel {described.name}: expected at most {threads} threads and {shared} bytes of shared "
            f"memory, got {described.threads} threads and {described.shared_bytes} bytes; choose smaller "
            f"tiles"
        )
