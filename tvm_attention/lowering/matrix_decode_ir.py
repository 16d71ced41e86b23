"""Products of decoding on x86's matrix unit (AMX): LLVM IR that a kernel's module links in.

Tile registers: two sums of values, weights, two tiles of pairs of values; sums of scores, keys, queries.
Where there are more scores than a tile has columns (digits of eight rows), the first five are theirs.
"""

from __future__ import annotations

from dataclasses import dataclass

from tvm_attention.compute.matrix_decode import COLUMNS, KEYS, TILE_ROW
from tvm_attention.lowering.tile_ir import transposed

ROWS = 16  # of a tile
_TILE = ROWS * TILE_ROW
_SUMS, _WEIGHTS, _PAIRS = (0, 1), 2, (3, 4)
_SCORES, _KEYS, _QUERIES = (5, 0), 6, (7, 1)  # the second of each: of columns beyond the first tile

BEGIN, END = (f"tvm_attention_decode_{x}" for x in ("begin", "end"))


def session_ir(rows: int, columns: int) -> str:
    """Functions that configure the tile registers for a task of so many query rows and columns of scores,
    and release them."""
    sizes = [(rows, TILE_ROW)] * 3 + [(ROWS, TILE_ROW)] * 5
    first, more = min(columns, COLUMNS), columns - COLUMNS
    for tiles, held in ((0, first), (1, more)):
        if held > 0:
            for register in (_SCORES[tiles], _QUERIES[tiles]):
                sizes[register] = (ROWS, 4 * held)
    data = [1, 0] + [0] * 14  # palette, first row; reserved
    data += [byte for _, width in sizes for byte in (width, 0)] + [0] * 16
    data += [height for height, _ in sizes] + [0] * 8
    listed = ", ".join(f"i8 {b}" for b in data)
    return f"""
@tvm_attention_decode_tiles = private unnamed_addr constant [64 x i8] [{listed}], align 64
declare void @llvm.x86.ldtilecfg(ptr)
declare void @llvm.x86.tilerelease()
define i32 @{BEGIN}() alwaysinline {{
  call void @llvm.x86.ldtilecfg(ptr @tvm_attention_decode_tiles)
  ret i32 0
}}
define i32 @{END}() alwaysinline {{
  call void @llvm.x86.tilerelease()
  ret i32 0
}}
"""


def queries_name(columns: int) -> str:
    return f"tvm_attention_decode_queries_{columns}"


def queries_ir(columns: int) -> str:
    """A function that arranges rows of words (of four bytes) by word, then by row.

    Arguments: address of the rows, one after the other; of the result; words of a row (i64)."""
    lines = [
        f"define i32 @{queries_name(columns)}(ptr %rows, ptr %out, i64 %words) noinline {{",
        "entry:",
        "  br label %word",
        "word:",
        "  %w = phi i64 [ 0, %entry ], [ %next, %word ]",
        f"  %to = mul i64 %w, {columns}",
    ]
    for n in range(columns):
        lines += [
            f"  %skip{n} = mul i64 %words, {n}",
            f"  %at{n} = add i64 %skip{n}, %w",
            f"  %from{n} = getelementptr i32, ptr %rows, i64 %at{n}",
            f"  %x{n} = load i32, ptr %from{n}, align 1",
            f"  %place{n} = add i64 %to, {n}",
            f"  %to{n} = getelementptr i32, ptr %out, i64 %place{n}",
            f"  store i32 %x{n}, ptr %to{n}, align 4",
        ]
    return "\n".join(
        [
            *lines,
            "  %next = add i64 %w, 1",
            "  %more = icmp slt i64 %next, %words",
            "  br i1 %more, label %word, label %done",
            "done:",
            "  ret i32 0",
            "}",
            "",
        ]
    )


@dataclass(frozen=True)
class Scores:
    """A function that writes the products of 32 keys and ``columns`` columns, by column.

    ``steps``: of 64 bytes of a key; ``integer``: of int8, to int32 sums, else of bfloat16; ``ahead``: how
    many calls ahead keys are asked for. Arguments: address of the first key; bytes from a key to the next
    and to the last there is; address of the queries, by word of 4 bytes; of the result."""

    columns: int
    steps: int
    integer: bool
    ahead: int

    @property
    def name(self) -> str:
        kind = "int8" if self.integer else "bfloat16"
        return f"tvm_attention_decode_scores_{kind}_{self.columns}_{self.steps}_{self.ahead}"

    def code(self) -> str:
        product = "tdpbssd" if self.integer else "tdpbf16ps"
        size = self.steps * TILE_ROW
        tiles = -(-self.columns // COLUMNS)
        lines = [
            f"define i32 @{self.name}(ptr %first, i64 %row, i64 %span, ptr %queries, ptr %out) noinline {{",
            "entry:",
            f"  %copied = alloca [{KEYS * size} x i8], align 64",
            f"  %sums = alloca [{2 * tiles * _TILE} x i8], align 64",
            f"  %all = mul i64 %row, {KEYS - 1}",
            "  %whole = icmp eq i64 %span, %all",
            "  br i1 %whole, label %products, label %copy",
            "copy:",
            "  %last = sdiv i64 %span, %row",
            "  br label %copies",
            *_copy(self.steps, "%first", "0"),
            "products:",
            "  %keys = phi ptr [ %first, %entry ], [ %copied, %copies ]",
            f"  %stride = phi i64 [ %row, %entry ], [ {size}, %copies ]",
            *_asked("%first", self.ahead, self.steps),
        ]
        for half in range(2):
            used = [(t, _SCORES[t], _QUERIES[t]) for t in range(tiles)]
            lines += [f"  call void @llvm.x86.tilezero(i8 {sums})" for _, sums, _ in used]
            lines += [
                f"  %below{half} = mul i64 %stride, {half * ROWS}",
                f"  %from{half} = getelementptr i8, ptr %keys, i64 %below{half}",
            ]
            for s in range(self.steps):
                mark = f"{half}_{s}"
                lines += [
                    f"  %key{mark} = getelementptr i8, ptr %from{half}, i64 {s * TILE_ROW}",
                    f"  call void @llvm.x86.tileloadd64(i8 {_KEYS}, ptr %key{mark}, i64 %stride)",
                ]
                for t, sums, queries in used:
                    skip = 4 * (s * ROWS * self.columns + t * COLUMNS)
                    lines += [
                        f"  %query{mark}_{t} = getelementptr i8, ptr %queries, i64 {skip}",
                        f"  call void @llvm.x86.tileloadd64(i8 {queries}, ptr %query{mark}_{t}, "
                        f"i64 {4 * self.columns})",
                        f"  call void @llvm.x86.{product}(i8 {sums}, i8 {_KEYS}, i8 {queries})",
                    ]
            for t, sums, _ in used:
                lines += [
                    f"  %sums{half}_{t} = getelementptr i8, ptr %sums, i64 {(2 * t + half) * _TILE}",
                    f"  call void @llvm.x86.tilestored64(i8 {sums}, ptr %sums{half}_{t}, i64 {TILE_ROW})",
                ]
        for half in range(2):
            for t in range(tiles):
                self._stored(half, t, lines)
        return "\n".join([*lines, "  ret i32 0", "}", *_DECLARATIONS, ""])

    def _stored(self, half: int, tile: int, lines: list[str]) -> None:
        """Add to ``lines``: a tile's columns, as rows of the result."""
        mark = f"{half}_{tile}"
        for r in range(ROWS):
            lines += [
                f"  %row{mark}_{r} = getelementptr i8, ptr %sums{mark}, i64 {r * TILE_ROW}",
                f"  %in{mark}_{r} = load <16 x float>, ptr %row{mark}_{r}, align 64",
            ]
        columns = transposed([f"%in{mark}_{r}" for r in range(ROWS)], ROWS, lines)
        for n, column in enumerate(columns[: self.columns - tile * COLUMNS]):
            skip = 4 * ((tile * COLUMNS + n) * KEYS + half * ROWS)
            lines += [
                f"  %to{mark}_{n} = getelementptr i8, ptr %out, i64 {skip}",
                f"  store <16 x float> {column}, ptr %to{mark}_{n}, align 4",
            ]


@dataclass(frozen=True)
class Values:
    """A function that writes the values of all keys of a split, weighted: ``rows`` x ``columns`` float32.

    Arguments: address of the first key's values; bytes from a key's to the next and to the last there is;
    steps of 32 keys (i32); address of the weights, (step, row, key); of the result."""

    rows: int
    columns: int
    ahead: int

    @property
    def name(self) -> str:
        return f"tvm_attention_decode_values_{self.rows}_{self.columns}_{self.ahead}"

    def code(self) -> str:
        size = self.columns * 2
        lines = [
            f"define i32 @{self.name}(ptr %values, i64 %row, i64 %span, i32 %count, ptr %weights, ptr %out) "
            f"noinline {{",
            "entry:",
            f"  %copied = alloca [{KEYS * size} x i8], align 64",
            f"  %pairs = alloca [{KEYS * size} x i8], align 64",
            f"  %sums = alloca [{self.rows * 4 * self.columns} x i8], align 64",
            f"  call void @llvm.memset.p0.i64(ptr %sums, i8 0, i64 {self.rows * 4 * self.columns}, i1 false)",
            "  %steps = sext i32 %count to i64",
            f"  %keys = mul i64 %steps, {KEYS}",
            "  %before = sub i64 %keys, 1",
            "  %all = mul i64 %row, %before",
            "  %there = icmp eq i64 %span, %all",
            "  %none = icmp sle i64 %steps, 0",
            "  %whole = or i1 %there, %none",
            "  %last_step = sub i64 %steps, 1",
            f"  %last_first = mul i64 %last_step, {KEYS}",
            "  %last_skip = mul i64 %last_first, %row",
            "  %first = getelementptr i8, ptr %values, i64 %last_skip",
            "  br i1 %whole, label %begin, label %copy",
            "copy:",
            "  %rows_before = sdiv i64 %span, %row",
            "  %last = sub i64 %rows_before, %last_first",
            "  br label %copies",
            *_copy(size // TILE_ROW, "%first", "zero", "begin"),
            "begin:",
            "  %partial = phi i64 [ -1, %entry ], [ %last_step, %copies ]",
            "  br label %step_head",
            "step_head:",
            "  %s = phi i64 [ 0, %begin ], [ %s_next, %paired ]",
            "  %more = icmp slt i64 %s, %steps",
            "  br i1 %more, label %step, label %end",
            *self._step(size),
            "end:",
            *self._end(),
            "  ret i32 0",
            "}",
            "declare void @llvm.memset.p0.i64(ptr, i8, i64, i1)",
            *_DECLARATIONS,
            "",
        ]
        return "\n".join(lines)

    def _step(self, size: int) -> list[str]:
        """Pairs of keys beside each other, row by row, then the products of their tiles."""
        low = [x for lane in range(0, 32, 8) for n in range(4) for x in (lane + n, 32 + lane + n)]
        masks = [", ".join(f"i32 {x + half}" for x in low) for half in (0, 4)]
        lines = [
            "step:",
            "  %is_partial = icmp eq i64 %s, %partial",
            f"  %s_first = mul i64 %s, {KEYS}",
            "  %s_skip = mul i64 %s_first, %row",
            "  %s_values = getelementptr i8, ptr %values, i64 %s_skip",
            "  %s_from = select i1 %is_partial, ptr %copied, ptr %s_values",
            f"  %stride = select i1 %is_partial, i64 {size}, i64 %row",
            f"  %ask_skip = mul i64 %row, {self.ahead * KEYS}",
            "  br label %pair",
            "pair:",
            "  %p = phi i64 [ 0, %step ], [ %p_next, %pair ]",
            "  %a = phi ptr [ %s_from, %step ], [ %a_next, %pair ]",
            "  %b = getelementptr i8, ptr %a, i64 %stride",
            "  %a_next = getelementptr i8, ptr %b, i64 %stride",
            f"  %p_skip = mul i64 %p, {TILE_ROW}",
            "  %to = getelementptr i8, ptr %pairs, i64 %p_skip",
        ]
        for row in ("a", "b"):
            if self.ahead:
                lines.append(f"  %ask_{row} = getelementptr i8, ptr %{row}, i64 %ask_skip")
            for n in range(size // TILE_ROW if self.ahead else 0):
                lines += [
                    f"  %ask_{row}{n} = getelementptr i8, ptr %ask_{row}, i64 {n * TILE_ROW}",
                    f"  call void @llvm.prefetch.p0(ptr %ask_{row}{n}, i32 0, i32 3, i32 1)",
                ]
        for n in range(size // TILE_ROW):
            for row in ("a", "b"):
                lines += [
                    f"  %at_{row}{n} = getelementptr i8, ptr %{row}, i64 {n * TILE_ROW}",
                    f"  %{row}{n} = load <32 x i16>, ptr %at_{row}{n}, align 1",
                ]
            for half, mask in enumerate(masks):
                lines += [
                    f"  %x{n}_{half} = shufflevector <32 x i16> %a{n}, <32 x i16> %b{n}, <32 x i32> <{mask}>",
                    f"  %to{n}_{half} = getelementptr i8, ptr %to, i64 {(2 * n + half) * _TILE}",
                    f"  store <32 x i16> %x{n}_{half}, ptr %to{n}_{half}, align 64",
                ]
        lines += [
            "  %p_next = add i64 %p, 1",
            f"  %p_more = icmp slt i64 %p_next, {ROWS}",
            "  br i1 %p_more, label %pair, label %paired",
            "paired:",
            f"  %w_skip = mul i64 %s, {self.rows * TILE_ROW}",
            "  %w = getelementptr i8, ptr %weights, i64 %w_skip",
            f"  call void @llvm.x86.tileloadd64(i8 {_WEIGHTS}, ptr %w, i64 {TILE_ROW})",
        ]
        for n in range(self.columns // COLUMNS):
            sums, pairs = _SUMS[n % 2], _PAIRS[n % 2]
            lines += [
                f"  %sum{n} = getelementptr i8, ptr %sums, i64 {n * TILE_ROW * self.rows}",
                f"  %pairs{n} = getelementptr i8, ptr %pairs, i64 {n * _TILE}",
                f"  call void @llvm.x86.tileloadd64(i8 {sums}, ptr %sum{n}, i64 {TILE_ROW})",
                f"  call void @llvm.x86.tileloadd64(i8 {pairs}, ptr %pairs{n}, i64 {TILE_ROW})",
                f"  call void @llvm.x86.tdpbf16ps(i8 {sums}, i8 {_WEIGHTS}, i8 {pairs})",
                f"  call void @llvm.x86.tilestored64(i8 {sums}, ptr %sum{n}, i64 {TILE_ROW})",
            ]
        return [*lines, "  %s_next = add i64 %s, 1", "  br label %step_head"]

    def _end(self) -> list[str]:
        """The sums in the order of columns: a tile holds every other four of 32."""
        lines = []
        for group in range(self.columns // (2 * COLUMNS)):
            for r in range(self.rows):
                mark = f"{group}_{r}"
                for n in range(2):
                    skip = ((2 * group + n) * self.rows + r) * TILE_ROW
                    lines += [
                        f"  %from{mark}_{n} = getelementptr i8, ptr %sums, i64 {skip}",
                        f"  %sum{mark}_{n} = load <16 x float>, ptr %from{mark}_{n}, align 64",
                    ]
                for half in range(2):
                    lanes = (2 * half, 2 * half + 1)
                    order = [4 * x + 16 * tile + n for x in lanes for tile in (0, 1) for n in range(4)]
                    mask = ", ".join(f"i32 {x}" for x in order)
                    skip = 4 * (r * self.columns + group * 2 * COLUMNS + half * COLUMNS)
                    lines += [
                        f"  %in{mark}_{half} = shufflevector <16 x float> %sum{mark}_0, "
                        f"<16 x float> %sum{mark}_1, <16 x i32> <{mask}>",
                        f"  %out{mark}_{half} = getelementptr i8, ptr %out, i64 {skip}",
                        f"  store <16 x float> %in{mark}_{half}, ptr %out{mark}_{half}, align 4",
                    ]
        return lines


def _copy(steps: int, first: str, beyond: str, then: str = "products") -> list[str]:
    """The block ``copies``: 32 rows to ``%copied``, those after ``%last`` the last again or zeros."""
    lines = [
        "copies:",
        "  %r = phi i64 [ 0, %copy ], [ %r_next, %copies ]",
        "  %over = icmp sgt i64 %r, %last",
        "  %from_row = select i1 %over, i64 %last, i64 %r",
        "  %from_skip = mul i64 %from_row, %row",
        f"  %from_at = getelementptr i8, ptr {first}, i64 %from_skip",
        f"  %to_skip = mul i64 %r, {steps * TILE_ROW}",
        "  %to_at = getelementptr i8, ptr %copied, i64 %to_skip",
    ]
    for s in range(steps):
        lines += [
            f"  %c_from{s} = getelementptr i8, ptr %from_at, i64 {s * TILE_ROW}",
            f"  %c_to{s} = getelementptr i8, ptr %to_at, i64 {s * TILE_ROW}",
            f"  %c_x{s} = load <64 x i8>, ptr %c_from{s}, align 1",
        ]
        if beyond == "zero":
            lines.append(
                f"  %c_y{s} = select i1 %over, <64 x i8> zeroinitializer, <64 x i8> %c_x{s}"
            )
        value = f"%c_y{s}" if beyond == "zero" else f"%c_x{s}"
        lines.append(f"  store <64 x i8> {value}, ptr %c_to{s}, align 64")
    return [
        *lines,
        "  %r_next = add i64 %r, 1",
        f"  %r_more = icmp slt i64 %r_next, {KEYS}",
        f"  br i1 %r_more, label %copies, label %{then}",
    ]


def _asked(base: str, ahead: int, lines_of_row: int) -> list[str]:
    """Prefetches of 32 rows, some steps of 32 ahead."""
    if not ahead:
        return []
    code = [
        f"  %ask_skip = mul i64 %row, {ahead * KEYS}",
        f"  %ask0 = getelementptr i8, ptr {base}, i64 %ask_skip",
    ]
    for r in range(KEYS):
        if r:
            code.append(f"  %ask{r} = getelementptr i8, ptr %ask{r - 1}, i64 %row")
        for n in range(lines_of_row):
            code += [
                f"  %ask{r}_{n} = getelementptr i8, ptr %ask{r}, i64 {n * TILE_ROW}",
                f"  call void @llvm.prefetch.p0(ptr %ask{r}_{n}, i32 0, i32 3, i32 1)",
            ]
    return code


_DECLARATIONS = (
    "declare void @llvm.x86.tilezero(i8 immarg)",
    "declare void @llvm.x86.tileloadd64(i8 immarg, ptr, i64)",
    "declare void @llvm.x86.tilestored64(i8 immarg, ptr, i64)",
    "declare void @llvm.x86.tdpbf16ps(i8 immarg, i8 immarg, i8 immarg)",
    "declare void @llvm.x86.tdpbssd(i8 immarg, i8 immarg, i8 immarg)",
    "declare void @llvm.prefetch.p0(ptr, i32 immarg, i32 immarg, i32 immarg)",
)
