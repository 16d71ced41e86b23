"""Kernels for SVE of a fixed vector length, run under qemu with vectors of that length."""

from __future__ import annotations

from pathlib import Path

import pytest
from attention_variants import check_legal, decode_candidate, prefill_candidate
from exported_calls import (
    C_SOURCES,
    assert_right,
    build_archive,
    build_program,
    call_of,
    needs_qemu,
)
from test_arm_kernels import cases

from tvm_attention.compiler import build_module, kernel_key
from tvm_attention.errors import InvalidValueError
from tvm_attention.export.chosen import ExportedKernel
from tvm_attention.kernel_source import KernelSource
from tvm_attention.schedules import Candidate, arm
from tvm_attention.target import HardwareTarget, named_target, with_sve
from tvm_attention.workload import AttentionWorkload

RUNNING = AttentionWorkload(head_dim=48, value_dim=64, causal="top_left", dtype="bfloat16")
ROW_BLOCK = AttentionWorkload(head_dim=64, value_dim=48, mask="bool", mask_dense=True)
DECODE = AttentionWorkload(
    head_dim=64, value_dim=128, dtype="float16", query_length=2, query_heads=4, kv_heads=2
)
A64FX = with_sve(named_target("a64fx"), 512)
V1 = with_sve(named_target("neoverse-v1"), 256)


def candidates(target: HardwareTarget) -> list[tuple[AttentionWorkload, Candidate]]:
    lanes = arm.machine_parameters(target).lanes
    found = [
        (RUNNING, prefill_candidate("running", lanes, 64, "bfloat16")),
        (ROW_BLOCK, prefill_candidate("row_block keys", lanes, 48, masked=True)),
        (DECODE, decode_candidate(4)),
    ]
    for workload, candidate in found:
        check_legal(workload, target, candidate)
    return found


def test_lengths_are_checked() -> None:
    assert arm.machine_parameters(A64FX).lanes == 16
    assert arm.machine_parameters(named_target("a64fx")).lanes == 4
    for target, bits in (("cortex-a76", 256), ("a64fx", 384)):
        with pytest.raises(InvalidValueError, match="expected a target with SVE"):
            with_sve(named_target(target), bits)


def test_a_kernel_is_made_of_long_vectors() -> None:
    workload = AttentionWorkload(head_dim=64)
    candidate = arm.default_candidate(workload, arm.machine_parameters(A64FX))
    assert kernel_key(workload, A64FX, candidate) != kernel_key(
        workload, named_target("a64fx"), candidate
    )
    text = build_module(workload, A64FX, candidate).mod.inspect_source("asm")
    long = text.count("\tfmla\tz") + text.count("\tfmad\tz")
    assert long > 100
    assert text.count("\tfmla\tv") < 0.1 * long


@needs_qemu
@pytest.mark.parametrize(
    ("target", "core"),
    [(A64FX, "a64fx"), (V1, "max,sve-default-vector-length=32")],
    ids=["a64fx", "neoverse-v1"],
)
def test_sve_kernels(target: HardwareTarget, core: str, tmp_path: Path) -> None:
    kernels = [
        ExportedKernel(f"tvk{n}", w, target, KernelSource(c, None, "chosen by a test", ()))
        for n, (w, c) in enumerate(candidates(target))
    ]
    archive = build_archive({"aarch64": kernels}, tmp_path / "archive")
    source, path = C_SOURCES / "calls.c", tmp_path / "program"
    program = build_program(archive, "aarch64", source, path, "-static")
    made = [
        (kernel, case, call_of(case, seed=n, target=target.name))
        for kernel in kernels
        for n, case in enumerate(cases(kernel.workload))
    ]
    outcomes = program.on(core).run([call for _, _, (call, _, _) in made], tmp_path)
    for (kernel, case, (_, tensors, options)), outcome in zip(made, outcomes, strict=True):
        assert outcome.kernel in (kernel.name, ""), outcome.message
        assert_right(outcome, case, tensors, options)
