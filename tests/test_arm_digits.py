"""Decoding int8 caches by SDOT and SMMLA: where they are offered, what kernels consist of, their results
under qemu."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

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
    quantised,
)
from hot_loops import hot_loops

from tvm_attention.export.chosen import ExportedKernel
from tvm_attention.export.objects import write_object
from tvm_attention.kernel_source import KernelSource
from tvm_attention.schedules import arm
from tvm_attention.target import HardwareTarget, named_target, with_sve
from tvm_attention.workload import AttentionWorkload

A76, N2 = named_target("cortex-a76"), named_target("neoverse-n2")
EMULATED = {A76.name: "cortex-a76", N2.name: "max"}
ONE = AttentionWorkload(head_dim=64, query_length=1, query_heads=2, kv_heads=2, kv_dtype="int8")
WORKLOADS = (
    ONE,
    replace(ONE, head_dim=48, value_dim=80, softcap=True, output="attention_and_lse"),
    replace(
        ONE, head_dim=32, dtype="bfloat16", query_length=2, query_heads=4, causal="bottom_right"
    ),
)


def decisions(target: Any, w: AttentionWorkload) -> dict[str, int]:
    return dict(arm.default_candidate(w, arm.machine_parameters(target)).decisions)


def by_integers(w: AttentionWorkload, target: HardwareTarget, n: int) -> ExportedKernel:
    candidate = arm.default_candidate(w, arm.machine_parameters(target))
    rows = int(w.length_class.removeprefix("decode-r"))
    keys = {"score_keys": 4 if rows == 1 else 2} if n == 1 or target is A76 else {}
    candidate = candidate.replace(integer_products=1 if target is A76 else 2, **keys)
    check_legal(w, target, candidate)
    source = KernelSource(candidate, None, "chosen by a test", ())
    return ExportedKernel(f"tvk_{target.name[-1]}{n}", w, target, source)


@pytest.fixture(scope="module")
def kernels() -> list[ExportedKernel]:
    return [by_integers(w, t, n) for t in (A76, N2) for n, w in enumerate(WORKLOADS)]


@pytest.fixture(scope="module")
def program(kernels: list[ExportedKernel], tmp_path_factory: pytest.TempPathFactory) -> Program:
    folder = tmp_path_factory.mktemp("sdot")
    build_archive({"aarch64": kernels}, folder)
    return build_program(folder, "aarch64", C_SOURCES / "calls.c", folder / "calls", "-static")


def test_where_it_is_offered() -> None:
    assert decisions(A76, ONE)["integer_products"] == 1
    assert decisions(A76, replace(ONE, query_heads=8))["integer_products"] == 0
    for name in ("neoverse-v1", "neoverse-n2"):
        assert decisions(named_target(name), replace(ONE, query_heads=8))["integer_products"] == 2
    assert decisions(named_target("apple-m1"), ONE)["integer_products"] == 1
    for target, w in (
        (named_target("cortex-a72"), ONE),
        (with_sve(named_target("neoverse-n2"), 128), ONE),
        (A76, replace(ONE, kv_dtype=None)),
        (A76, replace(ONE, head_dim=40)),
    ):
        assert "integer_products" not in decisions(target, w)
    space = arm.design_space(replace(ONE, query_heads=8), arm.machine_parameters(A76))
    candidate = arm.default_candidate(replace(ONE, query_heads=8), arm.machine_parameters(A76))
    full = candidate.replace(score_keys=4)
    assert space.refusal(full) is None
    assert "score tile" in (space.refusal(full.replace(integer_products=1)) or "")
    one = arm.default_candidate(ONE, arm.machine_parameters(N2))
    space = arm.design_space(ONE, arm.machine_parameters(N2))
    assert "in pairs" in (space.refusal(one.replace(score_keys=1)) or "")
    assert "the 4 keys of a vector" in (space.refusal(one.replace(score_keys=8)) or "")


@needs_qemu
def test_the_loop_over_keys_is_made_of_it(kernels: list[ExportedKernel], tmp_path: Path) -> None:
    """By the disassembly: three digits by four keys, of which sixteen numbers are loaded once for all."""
    write_object(kernels[0], tmp_path / "kernel.o")
    loops = hot_loops(tmp_path / "kernel.o", 12, "sdot")
    runs = ONE.head_dim // 16
    assert len(loops) == 2  # of whole vectors of keys, and of others
    assert all(loop.fmla == 3 * 4 * runs for loop in loops)
    assert all(loop.loads <= (3 + 4) * runs for loop in loops)


@needs_qemu
def test_pairs_are_multiplied_at_once(kernels: list[ExportedKernel], tmp_path: Path) -> None:
    """By the disassembly: two pairs of digits, of which there are three, by two pairs of keys."""
    [kernel] = [k for k in kernels if k.workload is ONE and k.target is N2]
    write_object(kernel, tmp_path / "kernel.o")
    loops = hot_loops(tmp_path / "kernel.o", 12, "smmla")
    steps = ONE.head_dim // 8
    assert len(loops) == 2
    assert all(loop.fmla == 2 * 2 * steps for loop in loops)
    assert all(loop.loads <= (2 + 4) * steps for loop in loops)


def called(w: AttentionWorkload, target: HardwareTarget, keys: int, seed: int) -> tuple[Any, ...]:
    case = replace(w, batch=1, key_length=keys, kv_dtype=None)
    call, tensors, options = call_of(case, seed=seed, threads=1 + seed % 2, target=target.name)
    # Rows of which a single number is large, and rows of small ones: digits are of a row's largest.
    tensors["query"][0, 0, :, 5] *= 50
    tensors["query"][0, 1] *= 1e-3
    quantised(call, tensors, seed=seed)
    return case, call, tensors, options


@needs_qemu
@pytest.mark.parametrize("target", [A76, N2], ids=lambda t: t.name)
def test_results(
    program: Program, kernels: list[ExportedKernel], target: HardwareTarget, tmp_path: Path
) -> None:
    made = [
        (kernel, *called(kernel.workload, target, keys, n))
        for kernel in kernels
        if kernel.target is target
        for n, keys in enumerate((1, 97, 300))
    ]
    outcomes = program.on(EMULATED[target.name]).run([c for _, _, c, _, _ in made], tmp_path)
    for (kernel, case, _, tensors, options), outcome in zip(made, outcomes, strict=True):
        assert outcome.kernel == kernel.name, outcome.message
        assert_right(outcome, case, tensors, options)


@needs_qemu
@pytest.mark.parametrize("target", [A76, N2], ids=lambda t: t.name)
@pytest.mark.parametrize("value", [np.nan, np.inf, 0.0])
def test_a_query_that_is_no_number(
    program: Program, value: float, target: HardwareTarget, tmp_path: Path
) -> None:
    """It makes its own row NaN; a row of zeros gives the mean of the values."""
    case, call, tensors, options = called(ONE, target, 40, 0)
    tensors["query"][0, 1, 0, :] = value
    [outcome] = program.on(EMULATED[target.name]).run([call], tmp_path)
    assert outcome.out is not None
    if value == 0.0:
        assert_right(outcome, case, tensors, options)
        return
    assert np.isnan(outcome.out[0, 1]).all()
    assert np.isfinite(outcome.out[0, 0]).all()
