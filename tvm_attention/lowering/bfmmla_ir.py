"""Products of tiles by BFMMLA, which multiplies 2 x 4 by 4 x 2 bfloat16 numbers: LLVM IR that a kernel's
module links in.

The functions take what those of a matrix unit do (tvm_attention.lowering.matrix_ir), one piece an operand.
A block of 8 x 8 results stays in sixteen registers, each with 2 x 2 of them.
"""

from __future__ import annotations

from functools import lru_cache

from tvm_attention.lowering.matrix_ir import ROW_BYTES, ROWS, TILE_BYTES, product_name

BLOCK = 8  # rows and columns of results in registers
_PAIRS = range(BLOCK // 2)
_RUN = 8  # numbers of a row that are multiplied in a turn
_STEP_RUNS = ROW_BYTES // (2 * _RUN)
_ROLLED = ", !llvm.loop !0"  # a turn is long enough
# A kernel's other vectors go to memory before and come back after, where LLVM would spill accumulators.
_ALONE = f'  call void asm sideeffect "", "{",".join(f"~{{v{n}}}" for n in range(32))}"()'
_ACCUMULATORS = [f"{r}{c}" for r in _PAIRS for c in _PAIRS]


@lru_cache
def product_ir(row_tiles: int) -> str:
    """A function that writes ``row_tiles`` x 16 rows of a product, by blocks of 8 columns.

    Arguments: address of the left operand, whose tiles are contiguous, and bytes from a row of tiles to the
    next; of the right operand, and bytes from a row, of pairs of numbers, to the next (the one after
    is not used); of the result, and bytes from a row to the next; first step and number of steps (of 32
    numbers, i32); columns wanted (i32), at most two tiles of which are computed.
    """
    lines = [
        f"define i32 @{product_name(row_tiles, 1, 1, 1)}(ptr %left, i64 %below_left, ptr %right, "
        f"i64 %right_row, i64 %right_piece, ptr %out, i64 %out_row, "
        f"i32 %first, i32 %steps, i32 %columns) alwaysinline {{",
        "entry:",
        *_places(),
        "  br label %column_head",
        *_loop("column", "entry", "row_end", "%blocks", "done"),
        f"  %beside = mul i64 %column_at, {BLOCK * 4}",
        "  %right_at = getelementptr i8, ptr %from_right, i64 %beside",
        "  %out_at = getelementptr i8, ptr %out, i64 %beside",
        "  br label %row_head",
        *_loop("row", "column_body", "store", str(row_tiles * ROWS // BLOCK), "row_end"),
        *_block(),
        "row_end:",
        f"  br label %column_head{_ROLLED}",
        "done:",
        "  ret i32 0",
        "}",
        "declare <4 x float> @llvm.aarch64.neon.bfmmla(<4 x float>, <8 x bfloat>, <8 x bfloat>)",
        "!0 = distinct !{!0, !1}",
        '!1 = !{!"llvm.loop.unroll.disable"}',
    ]
    return "\n".join(lines) + "\n"


def _places() -> list[str]:
    """Where the operands' first step lies, and how many blocks of columns and runs there are."""
    return [
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
        f"  %runs = mul i32 %steps, {_STEP_RUNS}",
        f"  %run_right = mul i64 %right_row, {_RUN // 2}",
    ]


def _block() -> list[str]:
    """A block of results: its loop over runs, and the way to memory."""
    sums = [
        f"%a{n} = phi <4 x float> [ zeroinitializer, %row_body ], [ %a{n}_both, %run_body ]"
        for n in _ACCUMULATORS
    ]
    return [
        "  %tile = lshr i64 %row_at, 1",
        "  %half = and i64 %row_at, 1",
        "  %tile_skip = mul i64 %tile, %below_left",
        f"  %half_skip = mul i64 %half, {BLOCK * ROW_BYTES}",
        "  %row_skip = add i64 %tile_skip, %half_skip",
        "  %left_at = getelementptr i8, ptr %from_left, i64 %row_skip",
        "  %out_skip = mul i64 %row_at, %below_out",
        "  %out_block = getelementptr i8, ptr %out_at, i64 %out_skip",
        _ALONE,
        "  br label %run_head",
        *_loop("run", "row_body", "run_body", "%runs", "store", sums),
        *_run(),
        f"  br label %run_head{_ROLLED}",
        "store:",
        *_stored(),
        _ALONE,
        f"  br label %row_head{_ROLLED}",
    ]


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


def _run() -> list[str]:
    """Eight numbers of each row and column: two products of 2 x 4 by 4 x 2 for every accumulator."""
    lines = [
        f"  %run_step = udiv i64 %run_at, {_STEP_RUNS}",
        f"  %run_in = urem i64 %run_at, {_STEP_RUNS}",
        f"  %l_step = mul i64 %run_step, {TILE_BYTES}",
        f"  %l_in = mul i64 %run_in, {2 * _RUN}",
        "  %l_skip = add i64 %l_step, %l_in",
        "  %l = getelementptr i8, ptr %left_at, i64 %l_skip",
        "  %r_skip = mul i64 %run_at, %run_right",
        "  %r = getelementptr i8, ptr %right_at, i64 %r_skip",
    ]
    for row in range(_RUN // 2):
        lines += [
            f"  %r{row}_skip = mul i64 %right_row, {row}",
            f"  %r{row}_p0 = getelementptr i8, ptr %r, i64 %r{row}_skip",
            f"  %r{row}_p1 = getelementptr i8, ptr %r{row}_p0, i64 16",
            *(f"  %r{row}_{h} = load <4 x i32>, ptr %r{row}_p{h}, align 4" for h in (0, 1)),
        ]
    for half in (0, 1):
        lines += [line for r in _PAIRS for line in _rows(half, r)]
        lines += [line for c in _PAIRS for line in _columns(half, c)]
        before, after = ("_half", "_both") if half else ("", "_half")
        lines += [
            f"  %a{n}{after} = call <4 x float> @llvm.aarch64.neon.bfmmla(<4 x float> %a{n}{before}, "
            f"<8 x bfloat> %x{half}{n[0]}, <8 x bfloat> %y{half}{n[1]})"
            for n in _ACCUMULATORS
        ]
    return lines


def _rows(half: int, pair: int) -> list[str]:
    """Four numbers of two rows. Loaded by halves: whole rows, taken apart, would need more registers than
    there are."""
    name, lines = f"%x{half}{pair}", []
    for lane, before in enumerate(("poison", f"{name}_i0")):
        skip = (2 * pair + lane) * ROW_BYTES + half * _RUN
        lines += [
            f"  {name}_p{lane} = getelementptr i8, ptr %l, i64 {skip}",
            f"  {name}_{lane} = load i64, ptr {name}_p{lane}, align 8",
            f"  {name}_i{lane} = insertelement <2 x i64> {before}, i64 {name}_{lane}, i64 {lane}",
        ]
    return [*lines, f"  {name} = bitcast <2 x i64> {name}_i1 to <8 x bfloat>"]


def _columns(half: int, pair: int) -> list[str]:
    """Four numbers of two columns, which lie in two rows of pairs."""
    name, side, lane = f"%y{half}{pair}", pair // 2, 2 * (pair % 2)
    both = f"<4 x i32> %r{2 * half}_{side}, <4 x i32> %r{2 * half + 1}_{side}"
    mask = ", ".join(f"i32 {n}" for n in (lane, lane + 4, lane + 1, lane + 5))
    return [
        f"  {name}_i = shufflevector {both}, <4 x i32> <{mask}>",
        f"  {name} = bitcast <4 x i32> {name}_i to <8 x bfloat>",
    ]


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
