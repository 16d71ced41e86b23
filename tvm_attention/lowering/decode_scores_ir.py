"""Scores of decoding on x86's matrix unit (AMX), as LLVM IR."""

from __future__ import annotations

from dataclasses import dataclass

from tvm_attention.compute.matrix_decode import COLUMNS, KEYS, TILE_ROW
from tvm_attention.lowering.matrix_decode_ir import (
    DECLARATIONS,
    KEY_ROWS,
    QUERIES,
    ROWS,
    SCORES,
    TILE,
    asked_for,
    copies,
)
from tvm_attention.lowering.tile_ir import transposed


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

    @property
    def _tiles(self) -> int:
        return -(-self.columns // COLUMNS)

    def code(self) -> str:
        """Keys are read where they lie, unless there are fewer than a call's."""
        size = self.steps * TILE_ROW
        lines = [
            f"define i32 @{self.name}(ptr %first, i64 %row, i64 %span, ptr %queries, ptr %out) noinline {{",
            "entry:",
            f"  %copied = alloca [{KEYS * size} x i8], align 64",
            f"  %sums = alloca [{2 * self._tiles * TILE} x i8], align 64",
            f"  %all = mul i64 %row, {KEYS - 1}",
            "  %whole = icmp eq i64 %span, %all",
            "  br i1 %whole, label %products, label %copy",
            "copy:",
            "  %last = sdiv i64 %span, %row",
            "  br label %copies",
            *copies(size, "%first", "products", zeros=False),
            "products:",
            "  %keys = phi ptr [ %first, %entry ], [ %copied, %copies ]",
            f"  %stride = phi i64 [ %row, %entry ], [ {size}, %copies ]",
            *self._asked(),
        ]
        for half in range(2):
            self._products(half, lines)
        for half in range(2):
            for tile in range(self._tiles):
                self._stored(half, tile, lines)
        return "\n".join([*lines, "  ret i32 0", "}", *DECLARATIONS, ""])

    def _asked(self) -> list[str]:
        if not self.ahead:
            return []
        lines = [f"  %ahead = mul i64 %row, {self.ahead * KEYS}"]
        for r in range(KEYS):
            lines += [
                f"  %skip_k{r} = mul i64 %row, {r}",
                f"  %k{r} = getelementptr i8, ptr %first, i64 %skip_k{r}",
                *asked_for(f"k{r}", self.steps),
            ]
        return lines

    def _products(self, half: int, lines: list[str]) -> None:
        """Of sixteen keys, to ``%sums``."""
        product = "tdpbssd" if self.integer else "tdpbf16ps"
        used = [(t, SCORES[t], QUERIES[t]) for t in range(self._tiles)]
        lines += [f"  call void @llvm.x86.tilezero(i8 {sums})" for _, sums, _ in used]
        lines += [
            f"  %below{half} = mul i64 %stride, {half * ROWS}",
            f"  %from{half} = getelementptr i8, ptr %keys, i64 %below{half}",
        ]
        for step in range(self.steps):
            mark = f"{half}_{step}"
            lines += [
                f"  %key{mark} = getelementptr i8, ptr %from{half}, i64 {step * TILE_ROW}",
                f"  call void @llvm.x86.tileloadd64(i8 {KEY_ROWS}, ptr %key{mark}, i64 %stride)",
            ]
            for t, sums, queries in used:
                skip = 4 * (step * ROWS * self.columns + t * COLUMNS)
                lines += [
                    f"  %query{mark}_{t} = getelementptr i8, ptr %queries, i64 {skip}",
                    f"  call void @llvm.x86.tileloadd64(i8 {queries}, ptr %query{mark}_{t}, "
                    f"i64 {4 * self.columns})",
                    f"  call void @llvm.x86.{product}(i8 {sums}, i8 {KEY_ROWS}, i8 {queries})",
                ]
        for t, sums, _ in used:
            lines += [
                f"  %sums{half}_{t} = getelementptr i8, ptr %sums, i64 {(2 * t + half) * TILE}",
                f"  call void @llvm.x86.tilestored64(i8 {sums}, ptr %sums{half}_{t}, i64 {TILE_ROW})",
            ]

    def _stored(self, half: int, tile: int, lines: list[str]) -> None:
        """A tile's columns as rows of the result."""
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
