"""Decoding float16 caches by FMLAL: where it is offered, what it consists of, and its results under qemu."""

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
)
from hot_loops import instructions

from tvm_attention import reference
from tvm_attention.export.chosen import ExportedKernel
from tvm_attention.export.objects import write_object
from tvm_attention.kernel_source import KernelSource
from tvm_attention.schedules import arm
from tvm_attention.target import named_target, with_sve
from tvm_attention.workload import AttentionWorkload

N2 = named_target("neoverse-n2")
ONE = AttentionWorkload(head_dim=64, query_length=1, query_heads=2, kv_heads=2, dtype="float16")
# One row, whose products go to sums of either half; four, that share sums; masks and options, short heads.
KERNELS = (
    (ONE, {}),
    (replace(ONE, query_heads=8, head_dim=48, value_dim=80), {"value_vectors": 2}),
    (
        replace(
            ONE, query_length=2, head_dim=24, value_dim=32, causal="bottom_right", mask="bool",
            softcap=True, sinks=True, ragged=True, output="attention_and_lse",
        ),
        {"half_products": 2, "score_keys": 2},
    ),
)  # fmt: skip


def decisions(target: Any, w: AttentionWorkload) -> dict[str, int]:
    return dict(arm.default_candidate(w, arm.machine_parameters(target)).decisions)


@pytest.fixture(scope="module")
def kernels() -> list[ExportedKernel]:
    made = []
    for n, (w, changes) in enumerate(KERNELS):
        candidate = arm.default_candidate(w, arm.machine_parameters(N2)).replace(**changes)
        check_legal(w, N2, candidate)
        source = KernelSource(candidate, None, "chosen by a test", ())
        made.append(ExportedKernel(f"tvk_h{n}", w, N2, source))
    return made


@pytest.fixture(scope="module")
def program(kernels: list[ExportedKernel], tmp_path_factory: pytest.TempPathFactory) -> Program:
    folder = tmp_path_factory.mktemp("halves")
    build_archive({"aarch64": kernels}, folder)
    return build_program(folder, "aarch64", C_SOURCES / "calls.c", folder / "calls", "-static")


def test_where_it_is_offered() -> None:
    for name in ("neoverse-v1", "neoverse-n2", "apple-m1"):
        assert decisions(named_target(name), ONE)["half_products"] == 2
        assert decisions(named_target(name), replace(ONE, query_heads=8))["half_products"] == 1
    for target, w in (
        (named_target("neoverse-n1"), ONE),
        (named_target("cortex-a76"), ONE),
        (with_sve(N2, 128), ONE),
        (N2, replace(ONE, dtype="bfloat16")),
        (N2, replace(ONE, kv_dtype="int8")),
        (N2, replace(ONE, head_dim=68)),
        (N2, replace(ONE, value_dim=68)),
    ):
        assert "half_products" not in decisions(target, w)


def test_what_does_not_fit_is_refused() -> None:
    machine, w = arm.machine_parameters(N2), replace(ONE, query_heads=8)
    space = arm.design_space(w, machine)
    shared = arm.default_candidate(w, machine)
    assert space.refusal(shared) is None
    apart = shared.replace(half_products=2)
    for candidate, reason in (
        (apart, "score tile"),
        (shared.replace(value_vectors=1), "value_vectors=1 is odd"),
    ):
        assert reason in (space.refusal(candidate) or "")
        assert space.refusal(candidate.replace(half_products=0)) is None
    wide = arm.default_candidate(ONE, machine).replace(score_keys=8)
    assert "exceeds the 4 keys" in (arm.design_space(ONE, machine).refusal(wide) or "")
    assert space.refusal(apart.replace(score_keys=2)) is None


@needs_qemu
def test_its_loops_convert_nothing_that_is_stored(
    kernels: list[ExportedKernel], tmp_path: Path
) -> None:
    """By the disassembly: as many FMLAL as FMLAL2, which take elements of the weights, and nothing that
    widens float16 numbers."""
    path = tmp_path / "kernel.o"
    for kernel in kernels[:2]:
        write_object(kernel, path)
        code = instructions(path)
        names = [name for name, _ in code]
        w = kernel.workload
        rows, four_keys = w.query_heads // w.kv_heads, 4 * (w.head_dim + w.value_dim) // 8
        assert names.count("fmlal") == names.count("fmlal2") >= four_keys
        assert not {"fcvtl", "fcvtl2"} & set(names)
        assert not [o for n, o in code if n == "fcvt" and ", h" in o]
        of_values = [o for n, o in code if n.startswith("fmlal") and o.endswith("]")]
        assert len(of_values) >= 2 * rows * 4


def called(w: AttentionWorkload, keys: int, seed: int) -> tuple[Any, ...]:
    case = replace(w, batch=2 if w.ragged else 1, key_length=keys)
    call, tensors, options = call_of(case, seed=seed, threads=1 + seed % 2, target=N2.name)
    return case, call, tensors, options


@needs_qemu
def test_results(program: Program, kernels: list[ExportedKernel], tmp_path: Path) -> None:
    made = [
        (kernel, *called(kernel.workload, keys, n))
        for kernel in kernels
        for n, keys in enumerate((1, 97, 300))
    ]
    outcomes = program.on("max").run([call for _, _, call, _, _ in made], tmp_path)
    for (kernel, case, _, tensors, options), outcome in zip(made, outcomes, strict=True):
        assert outcome.kernel == kernel.name, outcome.message
        assert_right(outcome, case, tensors, options)


@needs_qemu
def test_a_core_without_it_is_refused(program: Program, tmp_path: Path) -> None:
    _, call, _, _ = called(ONE, 40, 0)
    [outcome] = program.on("neoverse-n1").run([call], tmp_path)
    assert outcome.status != "OK"
    assert "fp16fml" in outcome.message or N2.name in outcome.message


@needs_qemu
def test_many_small_weights_add_up(program: Program, tmp_path: Path) -> None:
    """One key has a weight of 1, and each of thousands less than float16 can hold beside it; together they
    have half of the sum."""
    keys = 4097
    case, call, tensors, options = called(ONE, keys, 0)
    query, key, value = (tensors[n] for n in ("query", "key", "value"))
    query[:], key[:] = 0.0, 0.0
    query[..., 0] = 8.0
    key[..., 0, 0] = np.log(keys - 1)  # times 8, over the root of 64: the score
    value[...] = 1.0
    value[..., 0, :] = -1.0
    [outcome] = program.on("max").run([call], tmp_path)
    expected = reference.attended(**tensors, **options)
    assert np.abs(expected.out).max() < 1e-2
    assert_right(outcome, case, tensors, options)
    small = key.copy()
    small[..., 0, 0] = 28.0  # weights of e**-28, below the least number of float16
    tensors["key"][:] = small
    [outcome] = program.on("max").run([call], tmp_path)
    assert_right(outcome, case, tensors, options)


@needs_qemu
@pytest.mark.parametrize("number", [np.nan, np.inf, 65504.0])
def test_numbers_at_the_end(program: Program, number: float, tmp_path: Path) -> None:
    """A query of NaN or Inf makes its own row NaN. Products of the largest numbers do not overflow."""
    case, call, tensors, options = called(ONE, 40, 0)
    if number < np.inf:
        tensors["query"][0, 1, 0, :] = 0.0
        tensors["query"][0, 1, 0, :2] = number
        tensors["key"][0, 1, :, 0] = number
        tensors["key"][0, 1, :, 1] = -number
        tensors["value"][0, 1] = number
        [outcome] = program.on("max").run([call], tmp_path)
        assert_right(outcome, case, tensors, options)
        return
    tensors["query"][0, 1, 0, :] = number
    [outcome] = program.on("max").run([call], tmp_path)
    assert outcome.out is not None
    assert np.isnan(outcome.out[0, 1]).all()
    assert np.isfinite(outcome.out[0, 0]).all()
