"""bfloat16 kernels made of BFMMLA: where they are chosen, what they consist of, their results under qemu."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from attention_variants import check_legal
from exported_calls import (
    C_SOURCES,
    Program,
    assert_right,
    build_archive,
    build_program,
    call_of,
    needs_qemu,
)
from hot_loops import hot_loops
from test_arm_kernels import cases

from tvm_attention import reference
from tvm_attention.export.chosen import ExportedKernel
from tvm_attention.export.objects import write_object
from tvm_attention.kernel_source import KernelSource
from tvm_attention.schedules import Candidate, arm
from tvm_attention.target import named_target, with_sve
from tvm_attention.workload import AttentionWorkload

N2 = named_target("neoverse-n2")
SMALL = {"query_block": 64, "query_strips": 2, "key_block": 96, "value_rows": 16, "overlapped": 0}
TILES = Candidate.of("matrix", SMALL)
PLAIN = AttentionWorkload(head_dim=64, dtype="bfloat16")
# Head dimensions on and off tiles and steps; masks, options and causality; other tiles.
KERNELS = (
    (PLAIN, TILES),
    (replace(PLAIN, head_dim=48, value_dim=80, causal="top_left"),
     TILES.replace(query_block=128, query_strips=1, value_rows=32)),
    (AttentionWorkload(head_dim=40, value_dim=24, dtype="bfloat16", mask="float32", mask_dense=True,
                       softcap=True, alibi=True, window=(30, 5), sinks=True, ragged=True,
                       output="attention_and_lse"), TILES.replace(query_strips=4)),
)  # fmt: skip


@pytest.fixture(scope="module")
def kernels() -> list[ExportedKernel]:
    return [
        ExportedKernel(f"tvk_b{n}", w, N2, KernelSource(c, None, "chosen by a test", ()))
        for n, (w, c) in enumerate(KERNELS)
    ]


@pytest.fixture(scope="module")
def program(kernels: list[ExportedKernel], tmp_path_factory: pytest.TempPathFactory) -> Program:
    folder = tmp_path_factory.mktemp("bfmmla")
    build_archive({"aarch64": kernels}, folder)
    return build_program(folder, "aarch64", C_SOURCES / "calls.c", folder / "calls", "-static")


def variant(target: str, w: AttentionWorkload) -> str:
    return arm.default_candidate(w, arm.machine_parameters(named_target(target))).variant


def test_a_core_that_has_it_takes_it_for_bfloat16() -> None:
    assert {variant(t, PLAIN) for t in ("neoverse-n2", "neoverse-v1")} == {"matrix"}
    for target in ("cortex-a53", "cortex-a72", "neoverse-n1", "apple-m1"):
        assert variant(target, PLAIN) == "running"
    for other in (
        replace(PLAIN, dtype="float16"),
        replace(PLAIN, dtype="float32"),
        replace(PLAIN, head_dim=16, value_dim=16),
        replace(PLAIN, paged=True, ragged=True),
    ):
        assert variant("neoverse-n2", other) == "running"
    assert variant("neoverse-n2", replace(PLAIN, query_length=1)) == "split_kv"
    machine = arm.machine_parameters(with_sve(N2, 128))
    assert arm.default_candidate(PLAIN, machine).variant == "running"


def test_both_defaults_begin_a_search() -> None:
    points = arm.starting_points(PLAIN, arm.machine_parameters(N2))
    assert [c.variant for c in points] == ["matrix", "running"]
    for candidate in (*points, *(c for _, c in KERNELS)):
        check_legal(PLAIN, N2, candidate)


def test_nothing_is_computed_ahead() -> None:
    space = arm.design_space(PLAIN, arm.machine_parameters(N2))
    assert "overlapped=1 is not one of" in (space.refusal(TILES.replace(overlapped=1)) or "")
    n1 = named_target("neoverse-n1")
    assert arm.design_space(PLAIN, arm.machine_parameters(n1)).refusal(TILES) is not None
    with pytest.raises(ValueError, match="BFMMLA"):
        arm.build(PLAIN, arm.machine_parameters(n1), TILES)


@needs_qemu
def test_hot_loops_are_matrix_multiplications(
    kernels: list[ExportedKernel], tmp_path: Path
) -> None:
    """By the disassembly: of what both products do beside loading, the rest puts operands in order."""
    write_object(kernels[0], tmp_path / "kernel.o")
    loops = hot_loops(tmp_path / "kernel.o", 32, "bfmmla")
    assert len(loops) == 2
    for loop in loops:
        assert loop.fmla == 32  # 8 x 8 sums of 8 numbers
        assert loop.fmla >= 0.75 * (loop.vector - loop.loads), loop


@needs_qemu
def test_results(program: Program, kernels: list[ExportedKernel], tmp_path: Path) -> None:
    made = [
        (kernel, case, call_of(case, seed=n, threads=1 + n % 3, target=kernel.target.name))
        for kernel in kernels
        for n, case in enumerate(cases(kernel.workload))
    ]
    outcomes = program.on("max").run([call for _, _, (call, _, _) in made], tmp_path)
    for (kernel, case, (_, tensors, options)), outcome in zip(made, outcomes, strict=True):
        assert outcome.kernel == kernel.name, outcome.message
        assert_right(outcome, case, tensors, options)


@needs_qemu
def test_values_that_are_not_finite(program: Program, tmp_path: Path) -> None:
    """They reach the rows that see them, and no other."""
    causal = KERNELS[1][0]
    case = replace(causal, batch=1, query_heads=2, kv_heads=1, query_length=90, key_length=90)
    call, tensors, options = call_of(case, target=N2.name)
    tensors["value"][0, 0, 40, 3] = np.nan
    tensors["value"][0, 0, 70, 5] = -np.inf
    [outcome] = program.on("max").run([call], tmp_path)
    assert outcome.status == "OK", outcome.message
    assert outcome.out is not None
    expected = reference.attended(**tensors, **options).out
    found = outcome.out.astype(np.float64)
    assert np.isnan(expected).sum() == 2 * 50
    assert np.array_equal(np.isnan(found), np.isnan(expected))
    assert np.array_equal(np.isinf(found), np.isinf(expected))
    finite = np.isfinite(expected)
    np.testing.assert_allclose(found[finite], expected[finite], rtol=0.02, atol=0.02)


@needs_qemu
def test_a_core_without_it_is_told(program: Program, tmp_path: Path) -> None:
    case = replace(PLAIN, query_length=9, key_length=70, query_heads=2, kv_heads=2)
    call, _, _ = call_of(case)
    [outcome] = program.on("neoverse-n1").run([call], tmp_path)
    assert outcome.status != "OK"
    assert "bf16" in outcome.message
