"""Loop nests that gather pairs of 16-bit numbers for the matrix unit become calls of functions in LLVM IR.

Values become tiles of a left operand (of columns, pairs of keys along their rows), queries a right one (of
pairs of columns, queries along its rows): either is a transposition of 32-bit words, half the shuffles of
one of float32 numbers and none of their conversions. A schedule annotates the outermost loop of the nest,
over tiles of columns, with ``pairs_of_rows`` or ``pairs_of_columns``: how many columns there are. Those
beyond become zeros, rows beyond the last repeat it.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import tvm
from tvm import tirx

from tvm_attention.lowering.statements import first_load, load_of
from tvm_attention.lowering.tile_ir import transposed

KINDS = ("pairs_of_rows", "pairs_of_columns")
WORDS = 16  # rows and columns of a tile, of 32-bit words
_FACTOR = "SCALE"  # whose sign queries take


class PairTiles:
    """Rewrites the annotated nests of one kernel; ``row_strides`` are those of its operands by name."""

    def __init__(self, row_strides: Mapping[str, Any]) -> None:
        self._row_strides = row_strides
        self._used: set[str] = set()

    @staticmethod
    def kind(nest: Any) -> str | None:
        """The annotation of a nest that this rewrites."""
        return next((kind for kind in KINDS if kind in nest.annotations), None)

    def rewrite(self, nest: Any, rows: Any, keys: Any) -> Any:
        """The nest as calls, given how many query rows there are and keys."""
        kind = self.kind(nest)
        assert kind is not None
        loops, store = [], nest
        while not isinstance(store, tirx.BufferStore):
            if isinstance(store, tirx.IfThenElse):  # that the key head is one, which it is
                store = store.then_case
                continue
            loops.append(store)
            store = store.body
        columns, of_rows = int(nest.annotations[kind]), kind == "pairs_of_rows"
        left = keys if of_rows else rows - loops[1].loop_var * WORDS
        source = first_load(store.value, (_FACTOR,))
        target = tirx.BufferLoad(store.buffer, store.indices)
        factor = load_of(_FACTOR, store.value)
        self._used.add(kind)
        call = tirx.call_extern(
            "int32",
            _name(kind),
            tirx.address_of(source),
            tirx.Cast("int64", self._row_strides[source.source.name]),
            tirx.max(left, 1),
            columns - loops[0].loop_var * (WORDS if of_rows else 2 * WORDS),
            tirx.address_of(target),
            # From a pair of columns to the next, or from a column.
            tirx.const(int(store.buffer.shape[-1]), "int64"),
            tirx.address_of(source if factor is None else factor),
        )
        body: Any = tirx.Evaluate(call)
        for loop in reversed(loops):
            extent = 1 if loop in loops[-2:] else loop.extent
            body = tirx.For(loop.loop_var, loop.min, extent, tirx.ForKind.SERIAL, body)
        return body

    def linked(self, stmt: Any) -> Any:
        """The statement with the functions it calls linked into its module."""
        for kind in sorted(self._used):
            code = tvm.ir.StringImm(_function_ir(kind))
            stmt = tirx.AttrStmt(tvm.ir.StringImm("import"), "pragma_import_llvm", code, stmt)
        return stmt


def _name(kind: str) -> str:
    return f"tvm_attention_{kind}"


@lru_cache
def _function_ir(kind: str) -> str:
    """Arguments: source address, its row stride (elements, i64), rows that exist (i32, at least 1), columns
    that exist (i32), target address, target row stride (words, i64), address of a float32 whose sign
    counts."""
    of_rows = kind == "pairs_of_rows"
    lanes = WORDS if of_rows else 2 * WORDS  # of a row that is read
    read, mask = f"<{lanes} x i16>", f"<{lanes} x i1>"
    counted = ", ".join(f"i16 {n}" for n in range(lanes))
    lines = [
        f"define i32 @{_name(kind)}(ptr %source, i64 %source_stride, i32 %source_rows, "
        f"i32 %source_columns, ptr %target, i64 %target_stride, ptr %factor) alwaysinline {{",
        "  %last = sub i32 %source_rows, 1",
        "  %columns = trunc i32 %source_columns to i16",
        f"  %first_lane = insertelement {read} poison, i16 %columns, i32 0",
        f"  %all_lanes = shufflevector {read} %first_lane, {read} poison, <{lanes} x i32> zeroinitializer",
        f"  %there = icmp slt {read} <{counted}>, %all_lanes",
    ]
    for r in range(2 * WORDS if of_rows else WORDS):
        before = f"%from{r - 1}" if r else "%source"
        lines += [
            f"  %more{r} = icmp sle i32 {r}, %last",
            f"  %step{r} = select i1 %more{r}, i64 {'%source_stride' if r else 0}, i64 0",
            f"  %from{r} = getelementptr i16, ptr {before}, i64 %step{r}",
            f"  %row{r} = call {read} @llvm.masked.load.v{lanes}i16.p0(ptr %from{r}, i32 1, "
            f"{mask} %there, {read} zeroinitializer)",
        ]
    lines += _rows_paired() if of_rows else _with_sign()
    for r, word in enumerate(transposed([f"%in{r}" for r in range(WORDS)], WORDS, lines)):
        lines += [
            f"  %skip{r} = mul i64 {r}, %target_stride",
            f"  %to{r} = getelementptr i32, ptr %target, i64 %skip{r}",
            f"  store <{WORDS} x float> {word}, ptr %to{r}, align 4",
        ]
    declared = f"declare {read} @llvm.masked.load.v{lanes}i16.p0(ptr, i32 immarg, {mask}, {read})"
    return "\n".join([*lines, "  ret i32 0", "}", declared, ""])


def _rows_paired() -> list[str]:
    """``%in``: two rows' numbers beside each other, zero for NaN and Inf."""
    wide = f"<{2 * WORDS} x i16>"
    order = ", ".join(f"i32 {n}, i32 {n + WORDS}" for n in range(WORDS))
    exponent = "<" + ", ".join([f"i16 {0x7F80}"] * (2 * WORDS)) + ">"
    lines = []
    for r in range(WORDS):
        lines += [
            f"  %both{r} = shufflevector <{WORDS} x i16> %row{2 * r}, <{WORDS} x i16> %row{2 * r + 1}, "
            f"<{2 * WORDS} x i32> <{order}>",
            f"  %exponent{r} = and {wide} %both{r}, {exponent}",
            f"  %finite{r} = icmp ne {wide} %exponent{r}, {exponent}",
            f"  %sound{r} = select <{2 * WORDS} x i1> %finite{r}, {wide} %both{r}, {wide} zeroinitializer",
            f"  %in{r} = bitcast {wide} %sound{r} to <{WORDS} x float>",
        ]
    return lines


def _with_sign() -> list[str]:
    """``%in``: a row's words, their numbers times the factor's sign."""
    words = f"<{WORDS} x i32>"
    lines = [
        "  %bits = load i32, ptr %factor, align 4",
        f"  %sign = and i32 %bits, {-(1 << 31)}",
        "  %lower_sign = lshr i32 %sign, 16",
        "  %both_signs = or i32 %sign, %lower_sign",
        f"  %first_sign = insertelement {words} poison, i32 %both_signs, i32 0",
        f"  %signs = shufflevector {words} %first_sign, {words} poison, {words} zeroinitializer",
    ]
    for r in range(WORDS):
        lines += [
            f"  %words{r} = bitcast <{2 * WORDS} x i16> %row{r} to {words}",
            f"  %signed{r} = xor {words} %words{r}, %signs",
            f"  %in{r} = bitcast {words} %signed{r} to <{WORDS} x float>",
        ]
    return lines
