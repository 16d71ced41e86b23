"""Rows of a mask's tile as LLVM IR: the terms that they add to scores."""

from __future__ import annotations

from tvm_attention.lowering.tile_rows import ELEMENT, splat, stores, widened

MASKS = ("mask_bool", "mask_float32", "mask_float16", "mask_bfloat16")

_SUFFIX = dict(zip(MASKS, ("i8", "f32", "f16", "i16"), strict=True))
_BITS = {"float32": 32, "float16": 16, "bfloat16": 16, "bool": 8}
_LINE = 64  # bytes of a cache line
_KEYS_AHEAD = 32
_LOG2_E = "0x3FF7154760000000"  # the float32 next to log2(e)


def existing(n: int) -> list[str]:
    """``%exist``: which columns of a mask there are."""
    numbers = "<" + ", ".join(f"i32 {i}" for i in range(n)) + ">"
    return [
        f"  %first = insertelement <{n} x i32> poison, i32 %source_columns, i32 0",
        f"  %columns = shufflevector <{n} x i32> %first, <{n} x i32> poison, "
        f"<{n} x i32> zeroinitializer",
        f"  %exist = icmp slt <{n} x i32> {numbers}, %columns",
    ]


def declaration(n: int, source: str) -> str:
    """Of the instructions that load a row."""
    element = f"<{n} x {ELEMENT[source.removeprefix('mask_')]}>"
    return (
        f"declare {element} @llvm.masked.load.v{n}{_SUFFIX[source]}.p0"
        f"(ptr, i32 immarg, <{n} x i1>, {element})\n"
        f"declare void @llvm.prefetch.p0(ptr, i32 immarg, i32 immarg, i32 immarg)"
    )


def mask_row(r: int, n: int, source: str) -> list[str]:
    """``%raw``, a mask's row; and a prefetch of what the next tiles of keys read of it: rows of a mask lie
    far apart, and are read a few elements at a time. Into L2: at some strides they share a set of L1."""
    dtype = source.removeprefix("mask_")
    element = f"<{n} x {ELEMENT[dtype]}>"
    ahead = max(_LINE, _KEYS_AHEAD * _BITS[dtype] // 8)
    return [
        f"  %ahead{r} = getelementptr i8, ptr %from{r}, i64 {ahead}",
        f"  call void @llvm.prefetch.p0(ptr %ahead{r}, i32 0, i32 2, i32 1)",
        f"  %raw{r} = call {element} @llvm.masked.load.v{n}{_SUFFIX[source]}.p0"
        f"(ptr %from{r}, i32 1, <{n} x i1> %exist, {element} {_absent(n, dtype)})",
    ]


def unless_without_effect(n: int, source: str, target: str) -> list[str]:
    """Zeros, and the end, where a tile of a mask adds nothing: most masks hold large areas of one number.
    ``%effect`` is zero there, one elsewhere."""
    dtype = source.removeprefix("mask_")
    element = f"<{n} x {ELEMENT[dtype]}>"
    bits = _BITS[dtype]
    vector, whole = f"<{n} x i{bits}>", f"i{bits * n}"
    ones = "<" + ", ".join([f"i{bits} 1"] * n) + ">"
    lines = []
    for r in range(n):
        lines.append(f"  %pattern{r} = bitcast {element} %raw{r} to {vector}")
        # True, stored as 1, is what adds nothing.
        term = f"%pattern{r}" if dtype != "bool" else f"%other{r}"
        if dtype == "bool":
            lines.append(f"  {term} = xor {vector} %pattern{r}, {ones}")
        before = "zeroinitializer" if r == 0 else f"%any{r - 1}"
        lines.append(f"  %any{r} = or {vector} {before}, {term}")
    return [
        *lines,
        f"  %all = bitcast {vector} %any{n - 1} to {whole}",
        f"  %plain = icmp eq {whole} %all, 0",
        "  %marked = xor i1 %plain, true",
        "  %effect = zext i1 %marked to i32",
        "  br i1 %plain, label %zeros, label %terms",
        "zeros:",
        *stores("zero", n, None, target),
        "  br label %end",
        "terms:",
    ]


def terms(r: int, n: int, source: str) -> list[str]:
    """A mask's row as terms in units of log2: tvm_attention.compute.scores.mask_term."""
    dtype = source.removeprefix("mask_")
    element, floats = f"<{n} x {ELEMENT[dtype]}>", f"<{n} x float>"
    infinite, lowest = splat(n, "0xFFF0000000000000"), splat(n, "0xC7EFFFFFE0000000")
    if dtype == "bool":
        return [
            f"  %seen{r} = icmp ne {element} %raw{r}, zeroinitializer",
            f"  %in{r} = select <{n} x i1> %seen{r}, {floats} zeroinitializer, {floats} {infinite}",
        ]
    return [
        *widened(r, n, dtype),
        f"  %scaled{r} = fmul {floats} %number{r}, {splat(n, _LOG2_E)}",
        f"  %low{r} = fcmp olt {floats} %scaled{r}, {lowest}",
        f"  %held{r} = select <{n} x i1> %low{r}, {floats} {lowest}, {floats} %scaled{r}",
        f"  %none{r} = fcmp olt {floats} %number{r}, {lowest}",
        f"  %in{r} = select <{n} x i1> %none{r}, {floats} {infinite}, {floats} %held{r}",
    ]


def _absent(n: int, dtype: str) -> str:
    """What stands for elements beyond a mask's last column: such keys are masked, or the maximum of a
    row would be that of a key which is not there."""
    if dtype == "bool":
        return "zeroinitializer"
    infinite = {"float32": "0xFFF0000000000000", "float16": "0xHFC00", "bfloat16": "-128"}[dtype]
    return "<" + ", ".join([f"{ELEMENT[dtype]} {infinite}"] * n) + ">"
