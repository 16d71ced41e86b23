"""The profiling programs: what they read out of code, and that they find the kernel that they run."""

from __future__ import annotations

import shutil
from collections import Counter

import pytest

from bench.command import launcher
from bench.profiling import hot_loops, instructions, sample, stages
from bench.profiling.sampler import sampled
from bench.profiling.subject import parsed_candidate, subject_of, subject_parser
from bench.profiling.x86_assembly import innermost_loops
from tvm_attention.errors import InvalidValueError, UnsupportedError
from tvm_attention.processor import local_processor
from tvm_attention.workload import AttentionWorkload

TINY = "head_dim=16,query_heads=2,query_length=64,key_length=64"
ASSEMBLY = """
main_compute_:
\tpushq\t%rbp
.LBB0_1:
\txorl\t%ecx, %ecx
.LBB0_2:
\tvfmadd231ps\t(%rax){1to16}, %zmm1, %zmm2
\tvfmadd231ps\t%zmm3, %zmm1, %zmm4           # zmm4 = (zmm1 * zmm3) + zmm4
\tvmovups\t%zmm2, 64(%rsp)                  # 64-byte Spill
\tcallq\texpf@PLT
\taddq\t$4, %rax
\tcmpq\t%rax, %rdx
\tjne\t.LBB0_2
\tdecq\t%rsi
\tjne\t.LBB0_1
\tretq
"""


def test_innermost_loops_are_counted() -> None:
    (loop,) = innermost_loops(ASSEMBLY)
    assert (loop.function, loop.label) == ("main_compute_", ".LBB0_2")
    assert loop.counts() == {"fma": 2, "spill": 1, "scalar": 3, "call": 1}
    assert loop.products == 2
    assert loop.broadcast_products == 1
    assert loop.share == pytest.approx(2 / 7)
    assert loop.calls == ["expf@PLT"]


def test_costs_of_calls_are_not_counted_twice() -> None:
    text = "fn=(1) a\n0x10 3\n0x12 4\ncalls=1 0x20\n0x14 100\n0x14 1\n\nfn=(2) b\n0x20 99\n0x12 2\n"
    assert instructions.parsed_costs(text) == Counter({0x10: 3, 0x12: 6, 0x14: 1, 0x20: 99})


def test_shares_of_stages_are_what_their_absence_saves() -> None:
    found = stages.shares({"whole": 10.0, "scores": 8.0, "values": 9.0, "exponential": 7.0})
    assert found == pytest.approx({"scores": 0.4, "values": 0.2, "exponential": 0.3, "rest": 0.1})


def test_stretches_end_where_nothing_is_sampled() -> None:
    quiet = [sample.Sampled(100 + n, "nop", 0) for n in range(sample.GAP + 1)]
    hot = [sample.Sampled(n, "vfmadd231ps %ymm0,%ymm1,%ymm2", 5) for n in range(3)]
    short = [sample.Sampled(50, "nop", 0)]
    found = sample.stretches([*hot[:1], *quiet, *hot[1:2], *short, *hot[2:]])
    assert [len(s) for s in found] == [3, 1]
    assert sample.kinds(found[0]) == Counter({"fma": 2, "scalar": 1})


def test_candidates_are_read_as_they_are_printed() -> None:
    text = "split_kv prefetch=1 score_keys=2"
    assert str(parsed_candidate(text)) == text
    with pytest.raises(InvalidValueError, match="expected a variant and name=number"):
        parsed_candidate("split_kv prefetch")


@pytest.mark.skipif(local_processor().kind != "x86", reason="reads x86 assembly")
def test_a_kernel_is_found_where_it_runs() -> None:
    """Its loops in the assembly, and most samples of a run within its code."""
    options = subject_parser("test", "").parse_args([TINY, "--target", "x86-64-v3"])
    subject = subject_of(options)
    loops = innermost_loops(hot_loops.assembly(subject))
    assert sum(loop.products for loop in loops) >= 8
    try:
        found = sampled(subject.call(), 0.5)
    finally:
        launcher().set_num_threads(None)
    memory = sample.kernel_memory(found)
    assert memory is not None
    code = sample.disassembled(found, memory)
    samples = sum(x.samples for x in code)
    assert samples >= sum(found.values()) / 4
    assert any("fma" in sample.kinds(s) for s in sample.stretches(code))


def test_stages_do_less_on_the_same_tiles() -> None:
    options = subject_parser("test", "").parse_args([TINY, "--seconds", "0.01"])
    subject = subject_of(options)
    try:
        calls = dict(stages.stage_calls(subject))
        for call in calls.values():
            call()
    finally:
        launcher().set_num_threads(None)
    assert set(calls) >= {stages.WHOLE, stages.EXPONENTIAL}


def test_what_is_no_workload_or_candidate_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert hot_loops.main(["head_dim=0"]) == 2
    assert hot_loops.main([TINY, "--candidate", "running key_block=1"]) == 2
    assert "--candidate" in capsys.readouterr().err


def test_counted_workloads_are_plain() -> None:
    with pytest.raises(UnsupportedError, match="no option but causal"):
        instructions.counted(AttentionWorkload(head_dim=8, dtype="float16"), "x86-64-v3")


@pytest.mark.skipif(shutil.which("valgrind") is None, reason="counts by valgrind")
def test_instructions_are_counted_exactly() -> None:
    """Twice the heads, twice the multiply-adds, and as many as the mathematics has at least."""
    small = AttentionWorkload(head_dim=16, query_heads=1, query_length=32, key_length=32)
    fmas = []
    for heads in (1, 2):
        workload = AttentionWorkload(head_dim=16, query_heads=heads, query_length=32, key_length=32)
        counts, code = instructions.counted(workload, "x86-64-v3")
        fmas.append(sum(n for a, n in counts.items() if a in code and code[a].kind == "fma"))
    assert fmas[1] == 2 * fmas[0]
    assert fmas[0] * 8 >= small.query_length * small.key_length * 2 * small.head_dim
