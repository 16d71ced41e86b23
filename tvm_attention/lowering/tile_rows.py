"""Rows of a tile as LLVM IR: from memory to float32 and back."""

from __future__ import annotations

ELEMENT = {"float32": "float", "float16": "half", "bfloat16": "i16", "bool": "i8"}


def row(r: int, n: int, source: str) -> list[str]:
    return [*_load(r, n, source), f"  %in{r} = fmul <{n} x float> %number{r}, %factor"]


def _load(r: int, n: int, dtype: str) -> list[str]:
    """``%number`` of row r, in float32."""
    load = f"  %raw{r} = load <{n} x {ELEMENT[dtype]}>, ptr %from{r}, align 1"
    return [load, *widened(r, n, dtype)]


def widened(r: int, n: int, dtype: str) -> list[str]:
    """``%number`` from ``%raw``."""
    if dtype == "float32":
        return [f"  %number{r} = bitcast <{n} x float> %raw{r} to <{n} x float>"]
    if dtype == "float16":
        return [f"  %number{r} = fpext <{n} x half> %raw{r} to <{n} x float>"]
    return [
        f"  %bits{r} = zext <{n} x i16> %raw{r} to <{n} x i32>",
        f"  %upper{r} = shl <{n} x i32> %bits{r}, {splat(n, 16)}",
        f"  %number{r} = bitcast <{n} x i32> %upper{r} to <{n} x float>",
    ]


def _store(r: str, n: int, value: str, dtype: str) -> list[str]:
    """Store a row of float32 as another dtype, rounded to nearest, ties to even."""
    if dtype == "float32":
        return [f"  store <{n} x float> {value}, ptr %to{r}, align 1"]
    if dtype == "float16":
        return [
            f"  %short{r} = fptrunc <{n} x float> {value} to <{n} x half>",
            f"  store <{n} x half> %short{r}, ptr %to{r}, align 1",
        ]
    whole, short = f"<{n} x i32>", f"<{n} x i16>"
    return [
        f"  %pattern{r} = bitcast <{n} x float> {value} to {whole}",
        f"  %top{r} = lshr {whole} %pattern{r}, {splat(n, 16)}",
        f"  %odd{r} = and {whole} %top{r}, {splat(n, 1)}",
        f"  %up{r} = add {whole} %pattern{r}, {splat(n, 0x7FFF)}",
        f"  %even{r} = add {whole} %up{r}, %odd{r}",
        f"  %rounded{r} = lshr {whole} %even{r}, {splat(n, 16)}",
        f"  %nan{r} = fcmp uno <{n} x float> {value}, zeroinitializer",
        f"  %sound{r} = select <{n} x i1> %nan{r}, {whole} {splat(n, 0x7FC0)}, {whole} %rounded{r}",
        f"  %short{r} = trunc {whole} %sound{r} to {short}",
        f"  store {short} %short{r}, ptr %to{r}, align 1",
    ]


def splat(n: int, value: int | str) -> str:
    """A vector of one constant: an int, or a float as LLVM writes it."""
    kind = "i32" if isinstance(value, int) else "float"
    return "<" + ", ".join([f"{kind} {value}"] * n) + ">"


def stores(mark: str, n: int, rows: list[str] | None, target: str) -> list[str]:
    """The target's rows that there are, one after the other; ``rows``: None for zeros."""
    lines = []
    for r in range(n):
        lines += [
            f"  %{mark}write{r} = icmp slt i32 {r}, %target_rows",
            f"  br i1 %{mark}write{r}, label %{mark}store{r}, label %end",
            f"{mark}store{r}:",
            f"  %{mark}offset{r} = mul i64 {r}, %target_stride",
            f"  %to{mark}{r} = getelementptr {ELEMENT[target]}, ptr %target, i64 %{mark}offset{r}",
        ]
        if rows is not None:
            lines += _store(f"{mark}{r}", n, rows[r], target)
            continue
        # As integers: LLVM would make one store of both kinds, of a value that it keeps on the stack.
        size = {"float32": 32, "float16": 16, "bfloat16": 16}[target]
        lines.append(f"  store <{n} x i{size}> zeroinitializer, ptr %to{mark}{r}, align 1")
    return lines
