"""Transposing a tile in vector registers: LLVM IR that a kernel's module links in.

Generic shufflevector instructions whose masks are those of x86's unpack and 128-bit lane shuffles; LLVM
turns them into what other vector units have (zip and trn on NEON).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

TILE_SIZES = (4, 8, 16)

MASKS = ("mask_bool", "mask_float32", "mask_float16", "mask_bfloat16")

_ELEMENT = {"float32": "float", "float16": "half", "bfloat16": "i16", "bool": "i8"}
_SUFFIX = dict(zip(MASKS, ("i8", "f32", "f16", "i16"), strict=True))
_LOG2_E = "0x3FF7154760000000"  # the float32 next to log2(e)


def function_name(size: int, source: str, target: str) -> str:
    """Name of the function that transposes tiles of ``size`` from one dtype to another."""
    return f"tvm_attention_transpose_{size}_{source}_{target}"


@lru_cache
def transposition_ir(size: int, source: str, target: str) -> str:
    """A function that writes the transpose of a ``size`` x ``size`` tile; size is one of TILE_SIZES.

    Arguments: source address, source row stride (elements, i64), source rows that exist (i32, the last
    one stands for those after it), source columns that exist (read by one of MASKS alone), target address,
    target row stride, target rows to write, address of ``size`` float32 factors, by which the columns of
    the source are multiplied (not those of MASKS, which become terms of scores).
    """
    n = size
    lines = [
        f"define i32 @{function_name(n, source, target)}(ptr %source, i64 %source_stride, "
        f"i32 %source_rows, i32 %source_columns, ptr %target, i64 %target_stride, "
        f"i32 %target_rows, ptr %factors) "
        f"alwaysinline {{",
        "entry:",
        *_once(n, source),
        "  %last = sub i32 %source_rows, 1",
    ]
    for r in range(n):
        lines += [
            f"  %have{r} = icmp slt i32 {r}, %last",
            f"  %row{r} = select i1 %have{r}, i32 {r}, i32 %last",
            f"  %wide{r} = sext i32 %row{r} to i64",
            f"  %at{r} = mul i64 %wide{r}, %source_stride",
            f"  %from{r} = getelementptr {_ELEMENT[source.removeprefix('mask_')]}, ptr %source, i64 %at{r}",
            *(_mask_row(r, n, source) if source in MASKS else _row(r, n, source)),
        ]
    rows = _shuffles([f"%in{r}" for r in range(n)], n, lines)
    for r in range(n):
        lines += [
            f"  %write{r} = icmp slt i32 {r}, %target_rows",
            f"  br i1 %write{r}, label %store{r}, label %end",
            f"store{r}:",
            f"  %offset{r} = mul i64 {r}, %target_stride",
            f"  %to{r} = getelementptr {_ELEMENT[target]}, ptr %target, i64 %offset{r}",
            *_store(r, n, rows[r], target),
        ]
    lines += ["  br label %end", "end:", "  ret i32 0", "}", ""]
    if source in MASKS:
        element = f"<{n} x {_ELEMENT[source.removeprefix('mask_')]}>"
        lines.append(
            f"declare {element} @llvm.masked.load.v{n}{_SUFFIX[source]}.p0"
            f"(ptr, i32 immarg, <{n} x i1>, {element})"
        )
    return "\n".join(lines) + "\n"


def _once(n: int, source: str) -> list[str]:
    """What all rows share: the factors, or which columns of a mask exist."""
    if source not in MASKS:
        return [f"  %factor = load <{n} x float>, ptr %factors, align 1"]
    numbers = "<" + ", ".join(f"i32 {i}" for i in range(n)) + ">"
    return [
        f"  %first = insertelement <{n} x i32> poison, i32 %source_columns, i32 0",
        f"  %columns = shufflevector <{n} x i32> %first, <{n} x i32> poison, "
        f"<{n} x i32> zeroinitializer",
        f"  %exist = icmp slt <{n} x i32> {numbers}, %columns",
    ]


def _row(r: int, n: int, source: str) -> list[str]:
    return [*_load(r, n, source), f"  %in{r} = fmul <{n} x float> %number{r}, %factor"]


def _mask_row(r: int, n: int, source: str) -> list[str]:
    """A mask's row as terms in units of log2: tvm_attention.compute.scores.mask_term."""
    dtype = source.removeprefix("mask_")
    element, floats = f"<{n} x {_ELEMENT[dtype]}>", f"<{n} x float>"
    infinite, lowest = _splat(n, "0xFFF0000000000000"), _splat(n, "0xC7EFFFFFE0000000")
    lines = [
        f"  %raw{r} = call {element} @llvm.masked.load.v{n}{_SUFFIX[source]}.p0"
        f"(ptr %from{r}, i32 1, <{n} x i1> %exist, {element} {_absent(n, dtype)})"
    ]
    if dtype == "bool":
        return [
            *lines,
            f"  %seen{r} = icmp ne {element} %raw{r}, zeroinitializer",
            f"  %in{r} = select <{n} x i1> %seen{r}, {floats} zeroinitializer, {floats} {infinite}",
        ]
    return [
        *lines,
        *_widened(r, n, dtype),
        f"  %scaled{r} = fmul {floats} %number{r}, {_splat(n, _LOG2_E)}",
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
    return "<" + ", ".join([f"{_ELEMENT[dtype]} {infinite}"] * n) + ">"


def _load(r: int, n: int, dtype: str) -> list[str]:
    """``%number`` of row r, in float32."""
    load = f"  %raw{r} = load <{n} x {_ELEMENT[dtype]}>, ptr %from{r}, align 1"
    return [load, *_widened(r, n, dtype)]


def _widened(r: int, n: int, dtype: str) -> list[str]:
    """``%number`` from ``%raw``."""
    if dtype == "float32":
        return [f"  %number{r} = bitcast <{n} x float> %raw{r} to <{n} x float>"]
    if dtype == "float16":
        return [f"  %number{r} = fpext <{n} x half> %raw{r} to <{n} x float>"]
    return [
        f"  %bits{r} = zext <{n} x i16> %raw{r} to <{n} x i32>",
        f"  %upper{r} = shl <{n} x i32> %bits{r}, {_splat(n, 16)}",
        f"  %number{r} = bitcast <{n} x i32> %upper{r} to <{n} x float>",
    ]


def _store(r: int, n: int, value: str, dtype: str) -> list[str]:
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
        f"  %top{r} = lshr {whole} %pattern{r}, {_splat(n, 16)}",
        f"  %odd{r} = and {whole} %top{r}, {_splat(n, 1)}",
        f"  %up{r} = add {whole} %pattern{r}, {_splat(n, 0x7FFF)}",
        f"  %even{r} = add {whole} %up{r}, %odd{r}",
        f"  %rounded{r} = lshr {whole} %even{r}, {_splat(n, 16)}",
        f"  %nan{r} = fcmp uno <{n} x float> {value}, zeroinitializer",
        f"  %sound{r} = select <{n} x i1> %nan{r}, {whole} {_splat(n, 0x7FC0)}, {whole} %rounded{r}",
        f"  %short{r} = trunc {whole} %sound{r} to {short}",
        f"  store {short} %short{r}, ptr %to{r}, align 1",
    ]


def _splat(n: int, value: int | str) -> str:
    """A vector of one constant: an int, or a float as LLVM writes it."""
    kind = "i32" if isinstance(value, int) else "float"
    return "<" + ", ".join([f"{kind} {value}"] * n) + ">"


def _shuffles(rows: list[str], n: int, lines: list[str]) -> list[str]:
    """log2(n) stages: pairs within 128-bit lanes first, then the 4-float lanes themselves."""

    def shuffle(a: str, b: str, mask: list[int]) -> str:
        name = f"%t{len(lines)}"
        items = ", ".join(f"i32 {m}" for m in mask)
        lines.append(
            f"  {name} = shufflevector <{n} x float> {a}, <{n} x float> {b}, <{n} x i32> <{items}>"
        )
        return name

    groups = range(0, n, 4)
    low = [x for g in groups for x in (g, n + g, g + 1, n + g + 1)]
    high = [x for g in groups for x in (g + 2, n + g + 2, g + 3, n + g + 3)]
    low_pairs = [x for g in groups for x in (g, g + 1, n + g, n + g + 1)]
    high_pairs = [x for g in groups for x in (g + 2, g + 3, n + g + 2, n + g + 3)]
    pairs = []
    for a, b in zip(rows[::2], rows[1::2], strict=True):
        pairs += [shuffle(a, b, low), shuffle(a, b, high)]
    # quads[q][c]: its 4-float lane l holds column 4 l + c of the rows 4 q to 4 q + 3.
    quads = []
    for q in range(0, n, 4):
        low0, high0, low1, high1 = pairs[q : q + 4]
        quads.append(
            [
                shuffle(low0, low1, low_pairs),
                shuffle(low0, low1, high_pairs),
                shuffle(high0, high1, low_pairs),
                shuffle(high0, high1, high_pairs),
            ]
        )
    if n == 4:
        return quads[0]
    return _lanes(quads, n, shuffle)


def _lanes(
    quads: list[list[str]], n: int, shuffle: Callable[[str, str, list[int]], str]
) -> list[str]:
    """Transposes the (n / 4) x (n / 4) matrix of 4-float lanes of each class of columns."""

    def pick(lanes: list[int]) -> list[int]:
        return [4 * lane + k for lane in lanes for k in range(4)]

    result = [""] * n
    for c in range(4):
        if n == 8:
            upper, lower = quads[0][c], quads[1][c]
            result[c] = shuffle(upper, lower, pick([0, 2]))
            result[4 + c] = shuffle(upper, lower, pick([1, 3]))
            continue
        even, odd = pick([0, 2, 4, 6]), pick([1, 3, 5, 7])
        q0, q1, q2, q3 = (q[c] for q in quads)
        first_even, first_odd = shuffle(q0, q1, even), shuffle(q0, q1, odd)
        second_even, second_odd = shuffle(q2, q3, even), shuffle(q2, q3, odd)
        result[c] = shuffle(first_even, second_even, even)
        result[8 + c] = shuffle(first_even, second_even, odd)
        result[4 + c] = shuffle(first_odd, second_odd, even)
        result[12 + c] = shuffle(first_odd, second_odd, odd)
    return result
