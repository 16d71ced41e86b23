"""Products of tiles on x86's matrix unit (AMX): LLVM IR that a kernel's module links in.

Eight tile registers of 16 rows of 64 bytes: four accumulators, two tiles of each operand.
"""

from __future__ import annotations

from functools import lru_cache

ROWS = 16  # of a tile
ROW_BYTES = 64
TILE_BYTES = ROWS * ROW_BYTES
_ACCUMULATORS, _LEFT, _RIGHT = (0, 1, 2, 3), (4, 5), (6, 7)
_Tiles = list[tuple[int, int, int]]  # row, column and register of the accumulators

BEGIN, END, FILL, ZERO, STORE = (
    f"tvm_attention_matrix_{x}" for x in ("begin", "end", "fill", "zero", "store")
)

PRODUCT = "tvm_attention_matrix_product"


def product_name(row_tiles: int, left: int, right: int, limit: int) -> str:
    """Name of the function that multiplies ``row_tiles`` tiles of ``left`` pieces by ``right`` pieces."""
    return f"{PRODUCT}_{row_tiles}_{left}_{right}_{limit}"


def step_name(row_tiles: int, left: int, right: int, limit: int) -> str:
    """Name of the function that takes one step of such a product."""
    return product_name(row_tiles, left, right, limit).replace("product", "step")


@lru_cache
def session_ir() -> str:
    """Functions that configure the tile registers for a task and release them, and one that fills rows
    of a tile of scores, from the first that is no key on, with minus infinity."""
    sizes = [1, 0] + [0] * 14  # palette, first row; reserved
    sizes += [b for _ in range(8) for b in (ROW_BYTES, 0)]  # bytes of a row, 16 bits each
    sizes += [0] * 16
    sizes += [ROWS] * 8 + [0] * 8
    return session("tvm_attention_matrix_tiles", sizes, BEGIN, END) + fill_ir("noinline")


def session(name: str, tiles: list[int], begin: str, end: str) -> str:
    """Functions that set the tiles' sizes, of these bytes, and give the unit back."""
    data = ", ".join(f"i8 {b}" for b in tiles)
    return f"""
@{name} = private unnamed_addr constant [64 x i8] [{data}], align 64
declare void @llvm.x86.ldtilecfg(ptr)
declare void @llvm.x86.tilerelease()
define i32 @{begin}() alwaysinline {{
  call void @llvm.x86.ldtilecfg(ptr @{name})
  ret i32 0
}}
define i32 @{end}() alwaysinline {{
  call void @llvm.x86.tilerelease()
  ret i32 0
}}
"""


def fill_ir(inlining: str) -> str:
    """A function that fills rows of a tile of scores, from the first that is no key on, with minus
    infinity."""
    lowest = ", ".join(["float 0xFFF0000000000000"] * ROWS)
    return f"""define i32 @{FILL}(ptr %scores, i64 %stride, i32 %first, i32 %rows) {inlining} {{
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
        lines += _tiles(name, row_tiles, columns, order(left, right, limit), left * TILE_BYTES)
    lines += ["}", *_DECLARATIONS]
    return "\n".join(lines) + "\n"


_DECLARATIONS = (
    "declare void @llvm.x86.tilezero(i8 immarg)",
    "declare void @llvm.x86.tileloadd64(i8 immarg, ptr, i64)",
    "declare void @llvm.x86.tilestored64(i8 immarg, ptr, i64)",
    "declare void @llvm.x86.tdpbf16ps(i8 immarg, i8 immarg, i8 immarg)",
)


@lru_cache
def step_ir(row_tiles: int, left: int, right: int, limit: int) -> str:
    """Functions by which a product of 2 x 2 tiles is computed step by step: one that clears the
    accumulators, one that adds the products of one pair of pieces at one step of 32 numbers, and one that
    stores the tiles.

    Arguments of a step: those of the product up to the right operand's, and the step's number (i32), which
    counts pairs of pieces first.
    """
    assert row_tiles == 2
    pairs = order(left, right, limit)
    tiles = [(r, c, _ACCUMULATORS[2 * r + c]) for r in range(2) for c in range(2)]
    # Four bits a pair: what a table would hold, with no load.
    packed = [sum(p[side] << 4 * i for i, p in enumerate(pairs)) for side in (0, 1)]
    lines = [
        f"define i32 @{ZERO}() alwaysinline {{",
        *(f"  call void @llvm.x86.tilezero(i8 {tile})" for _, _, tile in tiles),
        "  ret i32 0",
        "}",
        f"define i32 @{STORE}(ptr %out, i64 %out_row) alwaysinline {{",
        f"  %below = mul i64 %out_row, {ROWS}",
        *_stored(tiles, "%below"),
        "  ret i32 0",
        "}",
        f"define i32 @{step_name(row_tiles, left, right, limit)}(ptr %left, i64 %below_left, "
        f"ptr %right, i64 %right_row, i64 %right_piece, i32 %number) alwaysinline {{",
        f"  %depth_32 = udiv i32 %number, {len(pairs)}",
        f"  %pair_32 = urem i32 %number, {len(pairs)}",
        "  %depth = zext i32 %depth_32 to i64",
        "  %pair = zext i32 %pair_32 to i64",
        "  %bit = shl i64 %pair, 2",
        *(
            line
            for name, bits in zip(("m", "n"), packed, strict=True)
            for line in (
                f"  %{name}_from = lshr i64 {bits}, %bit",
                f"  %{name} = and i64 %{name}_from, 15",
            )
        ),
        f"  %l_depth = mul i64 %depth, {left * TILE_BYTES}",
        f"  %l_piece = mul i64 %m, {TILE_BYTES}",
        "  %l_skip = add i64 %l_depth, %l_piece",
        f"  %r_step = mul i64 %right_row, {ROWS}",
        "  %r_depth = mul i64 %depth, %r_step",
        "  %r_piece = mul i64 %n, %right_piece",
        "  %r_skip = add i64 %r_depth, %r_piece",
        *_load("l", "%left", "%l_skip", 2, "%below_left", _LEFT, str(ROW_BYTES)),
        *_load("r", "%right", "%r_skip", 2, str(ROW_BYTES), _RIGHT, "%right_row"),
        *_multiplied(tiles),
        "  ret i32 0",
        "}",
    ]
    return "\n".join([*lines, *_DECLARATIONS]) + "\n"


def order(left: int, right: int, limit: int) -> list[tuple[int, int]]:
    """The pairs of pieces to multiply, small products before large ones, each sharing an operand with the one
    before it: that one's tiles stay in their registers."""
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
        lines += _multiplied(results)
    lines += [
        f"  %{name}_next = add i32 %{name}_step, 1",
        f"  %{name}_left_next = getelementptr i8, ptr %{name}_left, i64 {left_step}",
        f"  %{name}_right_next = getelementptr i8, ptr %{name}_right, i64 %step_right",
        f"  br label %{name}_head",
        f"{name}_end:",
    ]
    return [*lines, *_stored(results, "%below_out", name), "  ret i32 0"]


def _multiplied(results: _Tiles) -> list[str]:
    """Each accumulator plus the product of its row's and its column's tile."""
    return [
        f"  call void @llvm.x86.tdpbf16ps(i8 {tile}, i8 {_LEFT[r]}, i8 {_RIGHT[c]})"
        for r, c, tile in results
    ]


def _stored(results: _Tiles, below: str, mark: str = "") -> list[str]:
    """The accumulators to memory, ``below`` bytes from a row of tiles to the next."""
    lines = []
    for r, c, tile in results:
        at = f"%{mark}at{tile}"
        lines += [
            f"  {at}_row = getelementptr i8, ptr %out, i64 {below if r else 0}",
            f"  {at} = getelementptr i8, ptr {at}_row, i64 {c * ROW_BYTES}",
            f"  call void @llvm.x86.tilestored64(i8 {tile}, ptr {at}, i64 %out_row)",
        ]
    return lines


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
