"""Products of tiles by BFMMLA, which multiplies 2 x 4 by 4 x 2 bfloat16 numbers: LLVM IR that a kernel's
module links in.

The functions take what those of a matrix unit do (tvm_attention.lowering.matrix_ir), one piece an operand.
A block of 8 x 8 results stays in sixteen registers, each with 2 x 2 of them.
"""

from __future__ import annotations

from functools import lru_cache

from tvm_attention.lowering.matrix_ir import FILL, ROW_BYTES, ROWS, TILE_BYTES, product_name

BLOCK = 8  # rows and columns of results in registers
_PAIRS = range(BLOCK // 2)
_RUN = 8  # numbers of a row that a load brings
_ROLLED = ", !llvm.loop !0"  # a turn is long enough
_ACCUMULATORS = [f"{r}{c}" for r in _PAIRS for c in _PAIRS]


@lru_cache
def product_ir(row_tiles: int) -> str:
    """A function that writes ``row_tiles`` x 16 rows of a product, by blocks of 8 columns.

    Arguments: address of the left operand, whose tiles are contiguous, and bytes from a row of tiles to the
    next; of the right operand, and bytes from a row, of pairs of numbers, to the next (the one after
    is not used); of the result, and bytes from a row to the next; first step and number of steps (of 32
    numbers, i32); columns wanted (i32), at most two tiles of which are computed.
    """
    zero = "zeroinitializer"
    lines = [
        f"define i32 @{product_name(row_tiles, 1, 1, 1)}(ptr %left, i64 %below_left, ptr %right, "
        f"i64 %right_row, i64 %right_piece, ptr %out, i64 %out_row, "
        f"i32 %first, i32 %steps, i32 %columns) alwaysinline {{",
        "entry:",
        "  %skip = sext i32 %first to i64",
        f"  %skip_left = mul i64 %skip, {TILE_BYTES}",
        f"  %step_right = mul i64 %right_row, {ROWS}",
        "  %skip_right = mul i64 %skip, %step_right",
        "  %from_left = getelementptr i8, ptr %left, i64 %skip_left",
        "  %from_right = getelementptr i8, ptr %right, i64 %skip_right",
        f"  %few = icmp slt i32 %columns, {2 * ROWS}",
        f"  %wanted = select i1 %few, i32 %columns, i32 {2 * ROWS}",
        f"  %rounded = add i32 %wanted, {BLOCK - 1}",
        f"  %blocks = sdiv i32 %rounded, {BLOCK}",
        f"  %below_out = mul i64 %out_row, {BLOCK}",
        "  br label %column_head",
        *_loop("column", "entry", "row_end", "%blocks", "done"),
        f"  %beside = mul i64 %column_at, {BLOCK * 4}",
        "  %right_at = getelementptr i8, ptr %from_right, i64 %beside",
        "  %out_at = getelementptr i8, ptr %out, i64 %beside",
        "  br label %row_head",
        *_loop("row", "column_body", "store", str(row_tiles * ROWS // BLOCK), "row_end"),
        "  %tile = lshr i64 %row_at, 1",
        "  %half = and i64 %row_at, 1",
        "  %tile_skip = mul i64 %tile, %below_left",
        f"  %half_skip = mul i64 %half, {BLOCK * ROW_BYTES}",
        "  %row_skip = add i64 %tile_skip, %half_skip",
        "  %left_at = getelementptr i8, ptr %from_left, i64 %row_skip",
        "  %out_skip = mul i64 %row_at, %below_out",
        "  %out_block = getelementptr i8, ptr %out_at, i64 %out_skip",
        "  br label %step_head",
        *_loop("step", "row_body", "step_body", "%steps", "store", [
            "%l0 = phi ptr [ %left_at, %row_body ], [ %l_next, %step_body ]",
            "%r0 = phi ptr [ %right_at, %row_body ], [ %r_next, %step_body ]",
            *(f"%a{n} = phi <4 x float> [ {zero}, %row_body ], [ %a{n}_4, %step_body ]"
              for n in _ACCUMULATORS),
        ]),
        *(line for run in range(ROW_BYTES // (2 * _RUN)) for line in _run(run)),
        f"  %l_next = getelementptr i8, ptr %l0, i64 {TILE_BYTES}",
        "  %r_next = getelementptr i8, ptr %r0, i64 %step_right",
        f"  br label %step_head{_ROLLED}",
        "store:",
        *_stored(),
        f"  br label %row_head{_ROLLED}",
        "row_end:",
        f"  br label %column_head{_ROLLED}",
        "done:",
        "  ret i32 0",
        "}",
        "declare <4 x float> @llvm.aarch64.neon.bfmmla(<4 x float>, <8 x bfloat>, <8 x bfloat>)",
        "!0 = distinct !{!0, !1}",
        '!1 = !{!"llvm.loop.unroll.disable"}',
    ]  # fmt: skip
    return "\n".join(lines) + "\n"


@lru_cache
def fill_ir() -> str:
    """A function that fills rows of a tile of scores, from the first that is no key on, with minus infinity."""
    lowest = ", ".join(["float 0xFFF0000000000000"] * ROWS)
    return f"""
define i32 @{FILL}(ptr %scores, i64 %stride, i32 %first, i32 %rows) alwaysinline {{
entry:
  %start = sext i32 %first to i64
  %end = sext i32 %rows to i64
  br label %head
head:
  %row = phi i64 [ %start, %entry ], [ %next, %body ]
  %more = icmp slt i64 %row, %end
  br i1 %more, label %body, label %done
body:
  %skip = mul i64 %row, %stride
  %at = getelementptr i8, ptr %scores, i64 %skip
  %beside = getelementptr i8, ptr %at, i64 {ROW_BYTES}
  store <{ROWS} x float> <{lowest}>, ptr %at, align 4
  store <{ROWS} x float> <{lowest}>, ptr %beside, align 4
  %next = add i64 %row, 1
  br label %head
done:
  ret i32 0
}}
"""


def _loop(
    name: str, before: str, last: str, count: str, after: str, carried: list[str] | None = None
) -> list[str]:
    """The head of a loop of so many turns, which ends in the block ``last``, and the label of its body, which
    has the turn as %NAME_at."""
    return [
        f"{name}_head:",
        f"  %{name} = phi i32 [ 0, %{before} ], [ %{name}_next, %{last} ]",
        *(f"  {line}" for line in carried or []),
        f"  %{name}_more = icmp slt i32 %{name}, {count}",
        f"  %{name}_next = add nsw i32 %{name}, 1",
        f"  %{name}_at = zext i32 %{name} to i64",
        f"  br i1 %{name}_more, label %{name}_body, label %{after}",
        f"{name}_body:",
    ]


def _run(run: int) -> list[str]:
    """Eight numbers of each row and column: two products of 2 x 4 by 4 x 2 for every accumulator."""
    lines = []
    for r in range(BLOCK):
        at, skip = f"%l{run}_{r}", r * ROW_BYTES + run * 2 * _RUN
        lines += [
            f"  {at}_p = getelementptr i8, ptr %l0, i64 {skip}",
            f"  {at} = load <2 x i64>, ptr {at}_p, align 8",
        ]
    for k in range(_RUN // 2):
        row = run * _RUN // 2 + k
        lines.append(f"  %r{row}_skip = mul i64 %right_row, {row}")
        lines.append(f"  %r{row}_p0 = getelementptr i8, ptr %r0, i64 %r{row}_skip")
        lines.append(f"  %r{row}_p1 = getelementptr i8, ptr %r{row}_p0, i64 16")
        lines += [f"  %r{row}_{h} = load <4 x i32>, ptr %r{row}_p{h}, align 4" for h in (0, 1)]
    for half in (0, 1):
        mark = f"{run}{half}"
        for r in _PAIRS:
            both = f"<2 x i64> %l{run}_{2 * r}, <2 x i64> %l{run}_{2 * r + 1}"
            lines += [
                f"  %x{mark}{r}_i = shufflevector {both}, <2 x i32> <i32 {half}, i32 {half + 2}>",
                f"  %x{mark}{r} = bitcast <2 x i64> %x{mark}{r}_i to <8 x bfloat>",
            ]
        first = run * _RUN // 2 + 2 * half
        for c in _PAIRS:
            h, lane = c // 2, 2 * (c % 2)
            both = f"<4 x i32> %r{first}_{h}, <4 x i32> %r{first + 1}_{h}"
            mask = ", ".join(f"i32 {n}" for n in (lane, lane + 4, lane + 1, lane + 5))
            lines += [
                f"  %y{mark}{c}_i = shufflevector {both}, <4 x i32> <{mask}>",
                f"  %y{mark}{c} = bitcast <4 x i32> %y{mark}{c}_i to <8 x bfloat>",
            ]
        for n in _ACCUMULATORS:
            before = f"%a{n}" if mark == "00" else f"%a{n}_{run}b" if half else f"%a{n}_{run}"
            after = f"%a{n}_{run + 1}" if half else f"%a{n}_{run}b"
            lines.append(
                f"  {after} = call <4 x float> @llvm.aarch64.neon.bfmmla(<4 x float> {before}, "
                f"<8 x bfloat> %x{mark}{n[0]}, <8 x bfloat> %y{mark}{n[1]})"
            )
    return lines


def _stored() -> list[str]:
    """The accumulators' rows side by side, to memory."""
    lines = []
    for row in range(BLOCK):
        r, half = row // 2, 2 * (row % 2)
        lines.append(f"  %o{row}_skip = mul i64 %out_row, {row}")
        lines.append(f"  %o{row}_0 = getelementptr i8, ptr %out_block, i64 %o{row}_skip")
        lines.append(f"  %o{row}_1 = getelementptr i8, ptr %o{row}_0, i64 16")
        mask = ", ".join(f"i32 {n}" for n in (half, half + 1, half + 4, half + 5))
        for c in (0, 1):
            both = f"<4 x float> %a{r}{2 * c}, <4 x float> %a{r}{2 * c + 1}"
            lines += [
                f"  %o{row}_{c}_v = shufflevector {both}, <4 x i32> <{mask}>",
                f"  store <4 x float> %o{row}_{c}_v, ptr %o{row}_{c}, align 4",
            ]
    return lines
