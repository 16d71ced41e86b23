"""What the products of decoding on x86's matrix unit (AMX) share: LLVM IR that a kernel's module links in.

Tile registers: two sums of values, weights, two tiles of pairs of values; sums of scores, keys, queries.
Where scores have more columns than a tile (digits of eight rows), those beyond have two of the first.
"""

from __future__ import annotations

from tvm_attention.compute.matrix_decode import COLUMNS, KEYS, TILE_ROW
from tvm_attention.lowering.matrix_ir import session

ROWS = 16  # of a tile
TILE = ROWS * TILE_ROW  # bytes
SUMS, WEIGHTS, PAIRS = (0, 1), 2, (3, 4)
SCORES, KEY_ROWS, QUERIES = (5, 0), 6, (7, 1)  # the second of each: columns beyond the first tile

BEGIN, END = (f"tvm_attention_decode_{x}" for x in ("begin", "end"))


def session_ir(rows: int, columns: int) -> str:
    """Functions that configure the tile registers for a task of so many query rows and columns of scores,
    and release them."""
    sizes = [(rows, TILE_ROW)] * 3 + [(ROWS, TILE_ROW)] * 5
    first, more = min(columns, COLUMNS), columns - COLUMNS
    for tiles, held in ((0, first), (1, more)):
        if held > 0:
            for register in (SCORES[tiles], QUERIES[tiles]):
                sizes[register] = (ROWS, 4 * held)
    data = [1, 0] + [0] * 14  # palette, first row; reserved
    data += [byte for _, width in sizes for byte in (width, 0)] + [0] * 16
    data += [height for height, _ in sizes] + [0] * 8
    return session("tvm_attention_decode_tiles", data, BEGIN, END)


def queries_name(columns: int) -> str:
    return f"tvm_attention_decode_queries_{columns}"


def queries_ir(columns: int) -> str:
    """A function that arranges rows of words (of four bytes) by word, then by row.

    Arguments: address of the rows, one after the other; of the result; words of a row (i64)."""
    moves = []
    for n in range(columns):
        moves += [
            f"  %skip{n} = mul i64 %words, {n}",
            f"  %at{n} = add i64 %skip{n}, %w",
            f"  %from{n} = getelementptr i32, ptr %rows, i64 %at{n}",
            f"  %x{n} = load i32, ptr %from{n}, align 1",
            f"  %place{n} = add i64 %first, {n}",
            f"  %to{n} = getelementptr i32, ptr %out, i64 %place{n}",
            f"  store i32 %x{n}, ptr %to{n}, align 4",
        ]
    body = "\n".join(moves)
    return f"""
define i32 @{queries_name(columns)}(ptr %rows, ptr %out, i64 %words) noinline {{
entry:
  br label %word
word:
  %w = phi i64 [ 0, %entry ], [ %next, %word ]
  %first = mul i64 %w, {columns}
{body}
  %next = add i64 %w, 1
  %more = icmp slt i64 %next, %words
  br i1 %more, label %word, label %done
done:
  ret i32 0
}}
"""


def copies(size: int, source: str, then: str, *, zeros: bool) -> list[str]:
    """The block ``copies``, after ``copy``: 32 rows of ``size`` bytes to ``%copied``, in place of those
    after ``%last`` that one again, or zeros."""
    lines = [
        "copies:",
        "  %r = phi i64 [ 0, %copy ], [ %r_next, %copies ]",
        "  %over = icmp sgt i64 %r, %last",
        "  %from_row = select i1 %over, i64 %last, i64 %r",
        "  %from_skip = mul i64 %from_row, %row",
        f"  %from_at = getelementptr i8, ptr {source}, i64 %from_skip",
        f"  %to_skip = mul i64 %r, {size}",
        "  %to_at = getelementptr i8, ptr %copied, i64 %to_skip",
    ]
    bytes_, none = f"<{TILE_ROW} x i8>", f"<{TILE_ROW} x i8> zeroinitializer"
    for n in range(size // TILE_ROW):
        lines += [
            f"  %c_from{n} = getelementptr i8, ptr %from_at, i64 {n * TILE_ROW}",
            f"  %c_to{n} = getelementptr i8, ptr %to_at, i64 {n * TILE_ROW}",
            f"  %c_x{n} = load {bytes_}, ptr %c_from{n}, align 1",
            f"  %c_y{n} = select i1 %over, {none if zeros else f'{bytes_} %c_x{n}'}, {bytes_} %c_x{n}",
            f"  store {bytes_} %c_y{n}, ptr %c_to{n}, align 64",
        ]
    return [
        *lines,
        "  %r_next = add i64 %r, 1",
        f"  %r_more = icmp slt i64 %r_next, {KEYS}",
        f"  br i1 %r_more, label %copies, label %{then}",
    ]


def asked_for(row: str, lines: int) -> list[str]:
    """Prefetches of so many cache lines of the row at ``%row``, ``%ahead`` bytes on."""
    code = [f"  %ask_{row} = getelementptr i8, ptr %{row}, i64 %ahead"]
    for n in range(lines):
        code += [
            f"  %ask_{row}_{n} = getelementptr i8, ptr %ask_{row}, i64 {n * TILE_ROW}",
            f"  call void @llvm.prefetch.p0(ptr %ask_{row}_{n}, i32 0, i32 3, i32 1)",
        ]
    return code


DECLARATIONS = (
    "declare void @llvm.x86.tilezero(i8 immarg)",
    "declare void @llvm.x86.tileloadd64(i8 immarg, ptr, i64)",
    "declare void @llvm.x86.tilestored64(i8 immarg, ptr, i64)",
    "declare void @llvm.x86.tdpbf16ps(i8 immarg, i8 immarg, i8 immarg)",
    "declare void @llvm.x86.tdpbssd(i8 immarg, i8 immarg, i8 immarg)",
    "declare void @llvm.prefetch.p0(ptr, i32 immarg, i32 immarg, i32 immarg)",
    "declare void @llvm.memset.p0.i64(ptr, i8, i64, i1 immarg)",
)
