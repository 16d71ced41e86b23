"""Operators of tvm_attention.compute (exp2, pieces) as instructions of AVX-512."""

from __future__ import annotations

from typing import Any

from tvm import tirx
from tvm.ir import register_op_attr

from tvm_attention.compute.exp2 import FRACTION, SCALED
from tvm_attention.compute.pieces import MERGED

_LANES = (4, 8, 16)  # of vector registers
_FLOOR = 1  # how VREDUCEPS rounds, keeping no bits of the fraction
_CURRENT = 4  # the rounding mode in force
_FIRST_OR_BOTH_OTHERS = 0xF8  # VPTERNLOGD's table of a | (b & c)
_UPPER_HALF = 0xFFFF0000


def _fraction(call: Any) -> Any:
    """x - floor(x)."""
    return _by_vectors("reduce", call.args, tirx.const(_FLOOR, "int32"))


def _scaled(call: Any) -> Any:
    """p * 2**floor(x)."""
    return _by_vectors("scalef", call.args)


def _merged(call: Any) -> Any:
    """lower | (x & 0xFFFF0000)."""
    lower, x = call.args
    lanes = lower.ty.dtype.lanes
    width = next(n for n in _LANES if n >= lanes)
    upper = tirx.Broadcast(tirx.const(_UPPER_HALF, "uint32"), width)
    result = tirx.call_llvm_pure_intrin(
        f"uint32x{width}",
        f"llvm.x86.avx512.pternlog.d.{32 * width}",
        *(_resized(operand, lanes, width) for operand in (lower, x)),
        upper,
        tirx.const(_FIRST_OR_BOTH_OTHERS, "int32"),
    )
    return _resized(result, width, lanes)


def _by_vectors(name: str, operands: Any, *rest: Any) -> Any:
    """The instruction on float32 operands of any number of lanes up to sixteen, in the least register that
    holds them: all lanes are computed alike, vectorised or not."""
    lanes = operands[0].ty.dtype.lanes
    width = next(n for n in _LANES if n >= lanes)
    padded = [_resized(x, lanes, width) for x in operands]
    others = tirx.Broadcast(tirx.const(0.0, "float32"), width)  # where the mask is off: nowhere
    mask = tirx.const(-1, "int16" if width == 16 else "int8")
    rounding = [tirx.const(_CURRENT, "int32")] if width == 16 else []
    result = tirx.call_llvm_pure_intrin(
        f"float32x{width}",
        f"llvm.x86.avx512.mask.{name}.ps.{32 * width}",
        *padded, *rest, others, mask, *rounding,
    )  # fmt: skip
    return _resized(result, width, lanes)


def _resized(x: Any, lanes: int, width: int) -> Any:
    """The first ``width`` lanes, over again beyond the last."""
    if lanes == width:
        return x
    if lanes == 1:
        return tirx.Broadcast(x, width)
    return tirx.Shuffle([x], [n % lanes for n in range(width)])


def register() -> None:
    """Tell TVM's LLVM of them."""
    for name, function in ((FRACTION, _fraction), (SCALED, _scaled), (MERGED, _merged)):
        register_op_attr(name, "llvm.FLowerIntrinsic", function)
