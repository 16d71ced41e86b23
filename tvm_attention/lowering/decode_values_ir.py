"""Weighted values of decoding on x86's matrix unit (AMX), as LLVM IR."""

from __future__ import annotations

from dataclasses import dataclass

from tvm_attention.compute.matrix_decode import COLUMNS, KEYS, TILE_ROW
from tvm_attention.lowering.matrix_decode_ir import (
    DECLARATIONS,
    PAIRS,
    ROWS,
    SUMS,
    TILE,
    WEIGHTS,
    asked_for,
    copies,
)


@dataclass(frozen=True)
class Values:
    """A function that writes the values of all keys of a split, weighted: ``rows`` x ``columns`` float32.

    ``ahead``: how many steps of 32 keys ahead values are asked for. Arguments: address of the first key's
    values; bytes from a key's to the next and to the last there is; steps (i32); address of the weights,
    (step, row, key); of the result."""

    rows: int
    columns: int
    ahead: int

    @property
    def name(self) -> str:
        return f"tvm_attention_decode_values_{self.rows}_{self.columns}_{self.ahead}"

    @property
    def _size(self) -> int:
        """Bytes of a key's values."""
        return 2 * self.columns

    def code(self) -> str:
        """Values are read once, row by row: tiles hold half of the columns at most, so that sums go to
        memory and back at each step. Those of a last step with fewer keys come from a copy."""
        sums = 4 * self.rows * self.columns
        lines = [
            f"define i32 @{self.name}(ptr %values, i64 %row, i64 %span, i32 %count, ptr %weights, "
            f"ptr %out) noinline {{",
            "entry:",
            f"  %copied = alloca [{KEYS * self._size} x i8], align 64",
            f"  %pairs = alloca [{KEYS * self._size} x i8], align 64",
            f"  %sums = alloca [{sums} x i8], align 64",
            f"  call void @llvm.memset.p0.i64(ptr %sums, i8 0, i64 {sums}, i1 false)",
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
            f"  %ahead = mul i64 %row, {self.ahead * KEYS}",
            "  br i1 %whole, label %begin, label %copy",
            "copy:",
            "  %rows_before = sdiv i64 %span, %row",
            "  %last = sub i64 %rows_before, %last_first",
            "  br label %copies",
            *copies(self._size, "%first", "begin", zeros=True),
            "begin:",
            "  %partial = phi i64 [ -1, %entry ], [ %last_step, %copies ]",
            "  br label %step_head",
            "step_head:",
            "  %s = phi i64 [ 0, %begin ], [ %s_next, %paired ]",
            "  %more = icmp slt i64 %s, %steps",
            "  br i1 %more, label %step, label %end",
            *self._pairs(),
            "paired:",
            *self._products(),
            "  %s_next = add i64 %s, 1",
            "  br label %step_head",
            "end:",
            *self._stored(),
        ]
        return "\n".join([*lines, "  ret i32 0", "}", *DECLARATIONS, ""])

    def _pairs(self) -> list[str]:
        """A step's values, pairs of keys beside each other: of 32 columns those that are the lower halves of
        128-bit lanes to one tile, the upper ones to the next."""
        lines = [
            "step:",
            "  %is_partial = icmp eq i64 %s, %partial",
            f"  %s_first = mul i64 %s, {KEYS}",
            "  %s_skip = mul i64 %s_first, %row",
            "  %s_values = getelementptr i8, ptr %values, i64 %s_skip",
            "  %s_from = select i1 %is_partial, ptr %copied, ptr %s_values",
            f"  %stride = select i1 %is_partial, i64 {self._size}, i64 %row",
            "  br label %pair",
            "pair:",
            "  %p = phi i64 [ 0, %step ], [ %p_next, %pair ]",
            "  %a = phi ptr [ %s_from, %step ], [ %a_next, %pair ]",
            "  %b = getelementptr i8, ptr %a, i64 %stride",
            "  %a_next = getelementptr i8, ptr %b, i64 %stride",
            f"  %p_skip = mul i64 %p, {TILE_ROW}",
            "  %to = getelementptr i8, ptr %pairs, i64 %p_skip",
        ]
        for row in ("a", "b") if self.ahead else ():
            lines += asked_for(row, self._size // TILE_ROW)
        for n in range(self._size // TILE_ROW):
            lines += _paired(n)
        return [
            *lines,
            "  %p_next = add i64 %p, 1",
            f"  %p_more = icmp slt i64 %p_next, {ROWS}",
            "  br i1 %p_more, label %pair, label %paired",
        ]

    def _products(self) -> list[str]:
        lines = [
            f"  %w_skip = mul i64 %s, {self.rows * TILE_ROW}",
            "  %w = getelementptr i8, ptr %weights, i64 %w_skip",
            f"  call void @llvm.x86.tileloadd64(i8 {WEIGHTS}, ptr %w, i64 {TILE_ROW})",
        ]
        for n in range(self.columns // COLUMNS):
            sums, pairs = SUMS[n % 2], PAIRS[n % 2]
            lines += [
                f"  %sum{n} = getelementptr i8, ptr %sums, i64 {n * TILE_ROW * self.rows}",
                f"  %pairs{n} = getelementptr i8, ptr %pairs, i64 {n * TILE}",
                f"  call void @llvm.x86.tileloadd64(i8 {sums}, ptr %sum{n}, i64 {TILE_ROW})",
                f"  call void @llvm.x86.tileloadd64(i8 {pairs}, ptr %pairs{n}, i64 {TILE_ROW})",
                f"  call void @llvm.x86.tdpbf16ps(i8 {sums}, i8 {WEIGHTS}, i8 {pairs})",
                f"  call void @llvm.x86.tilestored64(i8 {sums}, ptr %sum{n}, i64 {TILE_ROW})",
            ]
        return lines

    def _stored(self) -> list[str]:
        """The sums in the order of columns."""
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
                    skip = 4 * (r * self.columns + (2 * group + half) * COLUMNS)
                    lines += [
                        f"  %in{mark}_{half} = shufflevector <16 x float> %sum{mark}_0, "
                        f"<16 x float> %sum{mark}_1, <16 x i32> <{_order(half)}>",
                        f"  %out{mark}_{half} = getelementptr i8, ptr %out, i64 {skip}",
                        f"  store <16 x float> %in{mark}_{half}, ptr %out{mark}_{half}, align 4",
                    ]
        return lines


def _paired(n: int) -> list[str]:
    """Line ``n`` of two rows, %a and %b, as a row of each of two tiles from %to on."""
    lines = []
    for row in ("a", "b"):
        lines += [
            f"  %at_{row}{n} = getelementptr i8, ptr %{row}, i64 {n * TILE_ROW}",
            f"  %{row}{n} = load <32 x i16>, ptr %at_{row}{n}, align 1",
        ]
    for half in range(2):
        lanes = range(4 * half, 32, 8)
        mask = ", ".join(f"i32 {x + k}, i32 {32 + x + k}" for x in lanes for k in range(4))
        lines += [
            f"  %x{n}_{half} = shufflevector <32 x i16> %a{n}, <32 x i16> %b{n}, <32 x i32> <{mask}>",
            f"  %to{n}_{half} = getelementptr i8, ptr %to, i64 {(2 * n + half) * TILE}",
            f"  store <32 x i16> %x{n}_{half}, ptr %to{n}_{half}, align 64",
        ]
    return lines


def _order(half: int) -> str:
    """Where sixteen columns are in two tiles that have every other four of 32."""
    lanes = (2 * half, 2 * half + 1)
    places = [4 * lane + 16 * tile + k for lane in lanes for tile in (0, 1) for k in range(4)]
    return ", ".join(f"i32 {x}" for x in places)
