"""Products of tiles on x86's matrix unit (AMX): LLVM IR that a kernel's module links in.

Eight tile registers of 16 rows of 64 bytes: four accumulators, two tiles of each operand.
"""

from __future__ import annotations

from functools import lru_cache

ROWS = 16  # of a tile
ROW_BYTES = 64
TILE_BYTES = ROWS * ROW_BYTES
_ACCUMULATORS, _LEFT, _RIGHT = (0, 1, 2, 3), (4, 5), (6, 7)

BEGIN, END, FILL = (f"tvm_attention_matrix_{x}" for x in ("begin", "end", "fill"))


def product_name(row_tiles: int, left: int, right: int, limit: int) -> str:
    """Name of the function that multiplies ``row_tiles`` tiles of ``left`` pieces by ``right`` pieces."""
    return f"tvm_attention_matrix_product_{row_tiles}_{left}_{right}_{limit}"


@lru_cache
def session_ir() -> str:
    """Functions that configure the tile registers for a task and release them, and one that fills rows
    of a tile of scores, from the first that is no key on, with minus infinity."""
    sizes = [1, 0] + [0] * 14  # palette, first row; reserved
    sizes += [b for _ in range(8) for b in (ROW_BYTES, 0)] + [
        0
    ] * 16  # bytes of a row, 16 bits each
    sizes += [ROWS] * 8 + [0] * 8
    data = ", ".join(f"i8 {b}" for b in sizes)
    lowest = ", ".join(["float 0xFFF0000000000000"] * ROWS)
    return f"""
@tvm_attention_matrix_tiles = private unnamed_addr constant [64 x i8] [{data}], align 64
declare void @llvm.x86.ldtilecfg(ptr)
declare void @llvm.x86.tilerelease()
define i32 @{BEGIN}() alwaysinline {{
  call void @llvm.x86.ldtilecfg(ptr @tvm_attention_matrix_tiles)
  ret i32 0
}}
define i32 @{END}() alwaysinline {{
  call void @llvm.x86.tilerelease()
  ret i32 0
}}
define i32 @{FILL}(ptr %scores, i64 %stride, i32 %first, i32 %rows) noinline {{
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


@lru_cache
def product_ir(row_tiles: int, left: int, right: int, limit: int) -> str:
    """A function that writes ``row_tiles`` x 1 or 2 tiles of a product, row_tiles 1 or 2: the sum of the
    products of pieces m and n with m + n < ``limit``.

    Arguments: address of the left operand, whose tiles are contiguous by piece and then by step, and bytes
    from a row of tiles to the next; of the right operand, bytes from a row and from a piece to the next; of
    the result, bytes from a row to the next; first step and number of steps (of 32 numbers, i32); columns
    wanted (i32): up to 16 take one tile.
    """
    lines = [
        f"define i32 @{product_name(row_tiles, left, right, limit)}(ptr %left, i64 %below_left, "
        f"ptr %right, i64 %right_row, i64 %right_piece, ptr %out, i64 %out_row, "
        f"i32 %first, i32 %steps, i32 %columns) noinline {{",
        "entry:",
        "  %skip = sext i32 %first to i64",
        f"  %skip_left = mul i64 %skip, {left * TILE_BYTES}",
        f"  %step_right = mul i64 %right_row, {ROWS}",
        "  %skip_right = mul i64 %skip, %step_right",
        "  %from_left = getelementptr i8, ptr %left, i64 %skip_left",
        "  %from_right = getelementptr i8, ptr %right, i64 %skip_right",
        f"  %below_out = mul i64 %out_row, {ROWS}",
        f"  %wide = icmp sgt i32 %columns, {ROWS}",
        "  br i1 %wide, label %two, label %one",
    ]
    for name, columns in (("one", 1), ("two", 2)):
        lines += _tiles(name, row_tiles, columns, _order(left, right, limit), left * TILE_BYTES)
    lines += ["}", *_DECLARATIONS]
    return "\n".join(lines) + "\n"


_DECLARATIONS = (
    "declare void @llvm.x86.tilezero(i8 immarg)",
    "declare void @llvm.x86.tileloadd64(i8 immarg, ptr, i64)",
    "declare void @llvm.x86.tilestored64(i8 immarg, ptr, i64)",
    "declare void @llvm.x86.tdpbf16ps(i8 immarg, i8 immarg, i8 immarg)",
)


def _order(left: int, right: int, limit: int) -> list[tuple[int, int]]:
    """The pairs of pieces, small products before large ones, each sharing an operand with the one before
    it: that one's tiles stay in their registers."""
    pairs: list[tuple[int, int]] = []
    last = 0
    for m in reversed(range(left)):
        partners = [n for n in reversed(range(right)) if m + n < limit]
        partners.sort(key=lambda n: n != last)  # stable: the rest stays as it is
        pairs += [(m, n) for n in partners]
        last = partners[-1]
    return pairs


def _tiles(
    name: str, rows: int, columns: int, pairs: list[tuple[int, int]], left_step: int
) -> list[str]:
    """The product in ``rows`` x ``columns`` accumulators; ``left_step``: bytes of the left operand."""
    results = [(r, c, _ACCUMULATORS[2 * r + c]) for r in range(rows) for c in range(columns)]
    lines = [f"{name}:"]
    lines += [f"  call void @llvm.x86.tilezero(i8 {tile})" for _, _, tile in results]
    lines += [
        f"  br label %{name}_head",
        f"{name}_head:",
        f"  %{name}_step = phi i32 [ 0, %{name} ], [ %{name}_next, %{name}_body ]",
        f"  %{name}_left = phi ptr [ %from_left, %{name} ], [ %{name}_left_next, %{name}_body ]",
        f"  %{name}_right = phi ptr [ %from_right, %{name} ], [ %{name}_right_next, %{name}_body ]",
        f"  %{name}_more = icmp slt i32 %{name}_step, %steps",
        f"  br i1 %{name}_more, label %{name}_body, label %{name}_end",
        f"{name}_body:",
    ]
    held: dict[str, int] = {}
    for number, (m, n) in enumerate(pairs):
        mark = f"{name}{number}"
        if held.get("left") != m:
            skip, apart = str(m * TILE_BYTES), "%below_left"
            lines += _load(f"{mark}l", f"%{name}_left", skip, rows, apart, _LEFT, str(ROW_BYTES))
        if held.get("right") != n:
            lines.append(f"  %{mark}_skip = mul i64 %right_piece, {n}")
            skip, apart = f"%{mark}_skip", str(ROW_BYTES)
            lines += _load(f"{mark}r", f"%{name}_right", skip, columns, apart, _RIGHT, "%right_row")
        held = {"left": m, "right": n}
        lines += [
            f"  call void @llvm.x86.tdpbf16ps(i8 {tile}, i8 {_LEFT[r]}, i8 {_RIGHT[c]})"
            for r, c, tile in results
        ]
    lines += [
        f"  %{name}_next = add i32 %{name}_step, 1",
        f"  %{name}_left_next = getelementptr i8, ptr %{name}_left, i64 {left_step}",
        f"  %{name}_right_next = getelementptr i8, ptr %{name}_right, i64 %step_right",
        f"  br label %{name}_head",
        f"{name}_end:",
    ]
    for r, c, tile in results:
        at = f"%{name}_at{tile}"
        lines += [
            f"  {at}_row = getelementptr i8, ptr %out, i64 {'%below_out' if r else 0}",
            f"  {at} = getelementptr i8, ptr {at}_row, i64 {c * ROW_BYTES}",
            f"  call void @llvm.x86.tilestored64(i8 {tile}, ptr {at}, i64 %out_row)",
        ]
    return [*lines, "  ret i32 0"]


def _load(
    mark: str, base: str, skip: str, tiles: int, apart: str, registers: tuple[int, ...], row: str
) -> list[str]:
    """One or two tiles of one operand, ``skip`` bytes from a base, ``apart`` bytes from each other, their
    rows ``row`` bytes."""
    lines = [f"  %{mark}_0 = getelementptr i8, ptr {base}, i64 {skip}"]
    if tiles == 2:
        lines.append(f"  %{mark}_1 = getelementptr i8, ptr %{mark}_0, i64 {apart}")
    return lines + [
        f"  call void @llvm.x86.tileloadd64(i8 {registers[tile]}, ptr %{mark}_{tile}, i64 {row})"
        for tile in range(tiles)
    ]
