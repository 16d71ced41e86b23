"""Transposing a tile in vector registers: LLVM IR that a kernel's module links in.

Generic shufflevector instructions whose masks are those of x86's unpack and 128-bit lane shuffles; LLVM
turns them into what other vector units have (zip and trn on NEON).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

from tvm_attention.lowering.mask_rows import (
    MASKS,
    declaration,
    existing,
    mask_row,
    terms,
    unless_without_effect,
)
from tvm_attention.lowering.tile_rows import ELEMENT, row, stores

TILE_SIZES = (4, 8, 16)


def function_name(size: int, source: str, target: str) -> str:
    """Name of the function that transposes tiles of ``size`` from one dtype to another."""
    return f"tvm_attention_transpose_{size}_{source}_{target}"


@lru_cache
def transposition_ir(size: int, source: str, target: str) -> str:
    """A function that writes the transpose of a ``size`` x ``size`` tile; size is one of TILE_SIZES.

    Arguments: source address, source row stride (elements, i64), source rows that exist (i32, the last
    one stands for those after it), source columns that exist (read by one of MASKS alone), target address,
    target row stride, target rows to write, address of ``size`` float32 factors, by which the columns of
    the source are multiplied (not those of MASKS, which become terms of scores). Returns zero, of a mask
    whether it has an effect.
    """
    n = size
    lines = [
        f"define i32 @{function_name(n, source, target)}(ptr %source, i64 %source_stride, "
        f"i32 %source_rows, i32 %source_columns, ptr %target, i64 %target_stride, "
        f"i32 %target_rows, ptr %factors) "
        # A mask's is long, and stands where no vectors are in registers.
        f"{'noinline' if source in MASKS else 'alwaysinline'} {{",
        "entry:",
        *(
            existing(n)
            if source in MASKS
            else [f"  %factor = load <{n} x float>, ptr %factors, align 1"]
        ),
        "  %last = sub i32 %source_rows, 1",
    ]
    element = ELEMENT[source.removeprefix("mask_")]
    for r in range(n):
        before = f"%from{r - 1}" if r else "%source"
        lines += [
            f"  %more{r} = icmp sle i32 {r}, %last",
            f"  %step{r} = select i1 %more{r}, i64 {'%source_stride' if r else 0}, i64 0",
            f"  %from{r} = getelementptr {element}, ptr {before}, i64 %step{r}",
            *(mask_row(r, n, source) if source in MASKS else row(r, n, source)),
        ]
    if source in MASKS:
        lines += unless_without_effect(n, source, target)
        lines += [line for r in range(n) for line in terms(r, n, source)]
    rows = transposed([f"%in{r}" for r in range(n)], n, lines)
    lines += stores("", n, rows, target)
    result = "%effect" if source in MASKS else "0"
    lines += ["  br label %end", "end:", f"  ret i32 {result}", "}", ""]
    if source in MASKS:
        lines.append(declaration(n, source))
    return "\n".join(lines) + "\n"


def transposed(rows: list[str], n: int, lines: list[str]) -> list[str]:
    """The columns of n vectors of n floats, computed by what is added to ``lines``: log2(n) stages, pairs
    within 128-bit lanes first, then the 4-float lanes themselves."""

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
