"""The parts of a model: loops of assembly, counts of loops, pipelines, cache lines, shares of tasks."""

from __future__ import annotations

import shutil
from dataclasses import replace

import pytest

from tvm_attention.modelling.assembly import function_blocks, natural_loops
from tvm_attention.modelling.cores import CORES
from tvm_attention.modelling.evolution import parsed
from tvm_attention.modelling.instructions import analysable, counts
from tvm_attention.modelling.ir_values import Definitions, NotKnown
from tvm_attention.modelling.nests import Access, Nest
from tvm_attention.modelling.pipelines import Pipelines, steady
from tvm_attention.modelling.task_weights import QueryBlocks, slowest_worker
from tvm_attention.modelling.traffic import lines_into
from tvm_attention.modelling.trip_counts import ir_loops
from tvm_attention.workload import AttentionWorkload

ASSEMBLY = """
other:
.LBB0_1:
	b	.LBB0_1
.Lfunc_end0:
kernel:
	mov	x0, #0
.LBB1_1:                                // outer
	mov	x1, #0
.LBB1_2:
	fmla	v0.4s, v1.4s, v2.s[1]
	stp	q3, q4, [sp, #32]
	ldr	q5, [sp, #32]
	add	x1, x1, #1
	cbnz	x1, .LBB1_2
	add	x0, x0, #1
	cmp	x0, #9
	b.ne	.LBB1_1
	cbz	x5, .LBB1_5
.LBB1_4:
	subs	x3, x3, #1
	b.ne	.LBB1_4
.LBB1_5:
	ret
.Lfunc_end1:
"""


def test_loops_of_assembly() -> None:
    blocks = function_blocks(ASSEMBLY, "arm", "kernel")
    first, second = natural_loops(blocks)
    assert [blocks[loop.head].label for loop in (first, *first.inner, second)] == [
        ".LBB1_1", ".LBB1_2", ".LBB1_4",
    ]  # fmt: skip
    own = [i for b in first.own for i in blocks[b].instructions]
    assert own == ["mov x1, #0", "add x0, x0, #1", "cmp x0, #9", "b.ne .LBB1_1"]
    inner = [i for b in first.inner[0].own for i in blocks[b].instructions]
    found = counts(inner, "arm")
    assert (found.instructions, found.fma, found.vector, found.spills) == (5, 1, 3, 1)
    assert analysable([*inner, "bl memset"], "arm")[-1] == "cbnz x1, .Lend"
    with pytest.raises(ValueError, match="no function main"):
        function_blocks(ASSEMBLY, "arm", "main")


def test_spills_of_x86() -> None:
    text = ["vmovups %zmm1, 64(%rsp)", "vaddps 64(%rsp), %zmm2, %zmm3", "movq %rax, 8(%rsp)"]
    assert counts(text, "x86").spills == 1
    assert counts(["vfmadd231ps (%rax){1to16}, %zmm1, %zmm2"], "x86").fma == 1


NONE = Definitions([])


@pytest.mark.parametrize(
    ("text", "turns", "expected"),
    [
        ("17", {}, 17),
        ("(-1 + (96 smin {512,+,-96}<nsw><%for.body>))<nsw>", {"for.body": 5}, 31),
        (
            "(-1 + (zext i32 (96 umin {{540,+,-96}<nw><%a>,+,12}<nuw><%b>) to i64))",
            {"a": 5, "b": 1},
            71,
        ),
        ("((5 + (2 * {0,+,3}<%a>)) /u 4)", {"a": 2}, 4),
    ],
)
def test_evolutions(text: str, turns: dict[str, int], expected: int) -> None:
    value = parsed(text, NONE)
    assert value.at(turns) == expected
    assert value.loops == set(turns)


@pytest.mark.parametrize(
    "text", ["%n", "(1 + %n)", "(1 ** 2)", "{0,+,1}", "(1 + 2", "***COULDNOTCOMPUTE***"]
)
def test_what_is_not_known(text: str) -> None:
    with pytest.raises(NotKnown):
        parsed(text, NONE)


def test_values_of_ir() -> None:
    defined = Definitions([
        "head:   ; preds = %entry, %head",
        "  %iv = phi i64 [ 3, %entry ], [ %next, %head ]",
        "  %two = phi i64 [ 0, %entry ], [ 96, %head ]",
        "  %next = add nuw nsw i64 %iv, 4, !dbg !1",
        "  %narrow = trunc i64 %iv to i32",
        "  %low = tail call i32 @llvm.smin.i32(i32 %narrow, i32 9)",
        "  %unknown = load i32, ptr %p",
        "  %cycle = add i32 %cycle, 1",
    ])  # fmt: skip
    assert [defined.value("%low").at({"head": n}) for n in range(3)] == [3, 7, 9]
    assert [defined.value("%two").at({"head": n}) for n in range(2)] == [0, 96]
    assert defined.value("%low").loops == {"head"}
    for name in ("%unknown", "%cycle", "%missing"):
        with pytest.raises(NotKnown):
            defined.value(name)


TRIANGLE = """
define void @f(ptr %p, i64 %n) {
entry:
  br label %outer
outer:
  %i = phi i64 [ 0, %entry ], [ %i1, %latch ]
  br label %inner
inner:
  %j = phi i64 [ 0, %outer ], [ %j1, %inner ]
  store volatile i64 %j, ptr %p
  %j1 = add nuw nsw i64 %j, 1
  %more = icmp ule i64 %j1, %i
  br i1 %more, label %inner, label %latch
latch:
  %i1 = add nuw nsw i64 %i, 1
  %again = icmp ult i64 %i1, 10
  br i1 %again, label %outer, label %rest
rest:
  %k = phi i64 [ 0, %latch ], [ %k1, %rest ]
  store volatile i64 %k, ptr %p
  %k1 = add nuw nsw i64 %k, 1
  %still = icmp ult i64 %k1, %n
  br i1 %still, label %rest, label %end
end:
  ret void
}
"""


@pytest.mark.skipif(shutil.which("opt-19") is None, reason="needs opt of LLVM 19")
def test_counts_of_loops() -> None:
    outer, rest = ir_loops(TRIANGLE)["f"]
    assert (outer.turns, outer.inner[0].turns) == (10, 5.5)  # 1 to 10, on average
    assert rest.turns is None


def _cycles(loop: list[str], name: str = "cortex_a55") -> float:
    model = CORES[name].model
    assert isinstance(model, Pipelines)
    return steady([loop], model)[0].cycles


def test_pipelines_in_order() -> None:
    fmla = [f"fmla v{n}.4s, v30.4s, v31.s[0]" for n in range(8)]
    assert _cycles(fmla) == 8
    assert _cycles([*fmla, "add x1, x1, #64", "subs x2, x2, #1"]) == 8  # beside them
    assert _cycles([*fmla, "ldr q20, [x1]"]) == 10  # two cycles in which nothing else starts
    assert _cycles([*fmla, "ldr d20, [x1]"]) == 8
    assert _cycles(["fmla v0.4s, v30.4s, v31.s[0]"]) == 4  # waits for the one before
    assert _cycles(["fmla v0.4s, v30.4s, v31.s[0]"], "cortex_a53") == 8
    # What it loads is waited for where it is used at once, not where other work comes first.
    late = [*fmla[:7], fmla[7].replace("v30", "v20")]
    assert _cycles(["ldr q20, [x1]", *late]) == 10
    assert _cycles(["ldr q20, [x1]", *reversed(late)]) == 13


def test_pipelines_out_of_order() -> None:
    chain = ["ldr q20, [x1], #16", "fmla v0.4s, v20.4s, v31.s[0]"]
    assert _cycles(chain, "m1") == 4
    many = [f"fmla v{n}.4s, v20.4s, v31.s[0]" for n in range(16)]
    assert _cycles(["ldr q20, [x1], #16", *many], "m1") == pytest.approx(4, abs=0.3)


def _matrix(rows: int, row_bytes: int, again: int) -> Nest:
    """Loops over rows of a matrix and over their columns, vector by vector, ``again`` times."""
    read = Access("A", 0, 16, {"row": row_bytes, "column": 16}, written=False)
    columns = Nest("column", row_bytes // 16, [read])
    return Nest("again", again, inner=[Nest("row", rows, inner=[columns])])


def test_cache_lines() -> None:
    matrix = _matrix(32, 256, 5)  # 8 KiB, 128 lines
    assert lines_into(matrix, 16 << 10) == 128
    assert lines_into(matrix, 8 << 10) == 5 * 128  # a quarter is left free
    [rows] = matrix.inner
    rows.inner[0].accesses.append(Access("B", 0, 16, {}, written=True))
    assert lines_into(matrix, 16 << 10) == 128 + 2  # fetched, and written back


def test_rows_of_a_tile_and_half_lines() -> None:
    tile = Nest("k", 4, [Access("V", 1024 * n, 32, {"k": 32}, written=False) for n in range(6)])
    assert lines_into(tile, 1 << 20) == 6 * 2


def test_shares_of_tasks() -> None:
    w = AttentionWorkload(head_dim=64, query_length=100, key_length=100)
    even = QueryBlocks(w, 48, 4)
    assert (even.count, even.modelled) == (3, 1)
    full, same, tail = even.weights()
    assert (full, same) == (1, 1)
    assert 4 / 48 < tail < 0.2  # four rows, less well computed
    causal = QueryBlocks(replace(w, causal=True, query_length=96, key_length=96), 48, 4)
    assert causal.weights() == [0.5, 1]
    window = replace(w, causal=True, query_length=960, key_length=960, window=(96, 0))
    weights = QueryBlocks(window, 48, 4)
    assert weights.modelled == 1
    assert weights.weights()[5] == pytest.approx(144 / 96)
    assert slowest_worker([1.0, 1.0, 0.1], 2, 4, in_turn=False) == 2
    assert slowest_worker([1.0, 2.0], 3, 2, in_turn=True) == 6
    assert slowest_worker([1.0, 2.0], 4, 2, in_turn=True) == 6
