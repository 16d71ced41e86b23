"""Machine code for every architecture, compiled without a GPU, and what its assembler says it takes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from cuda_on_cpu import code_of

from tvm_attention import runtime
from tvm_attention.cuda import compilers, nvrtc, toolkit
from tvm_attention.cuda.building import whole_source
from tvm_attention.cuda.machine_code import Resources, read_resources
from tvm_attention.errors import KernelBuildError
from tvm_attention.schedules import cuda
from tvm_attention.schedules.cuda_space import sizes_of
from tvm_attention.target import named_target
from tvm_attention.workload import AttentionWorkload

ELF = b"\x7fELF"
OPTIONS: dict[str, dict[str, Any]] = {
    "mask": {"mask": "bool", "mask_dense": True},
    "pages": {"ragged": True, "paged": True, "causal": "bottom_right"},
    "slopes": {"alibi": True, "softcap": True, "causal": "top_left"},
}
WORKLOADS = {
    "prefill": AttentionWorkload(head_dim=128),
    "tensor": AttentionWorkload(head_dim=128, dtype="float16"),
    "decode": AttentionWorkload(head_dim=128, dtype="bfloat16", query_heads=32, query_length=1),
}


@pytest.mark.parametrize("arch", cuda.MACHINES)
@pytest.mark.parametrize("name", WORKLOADS)
def test_default_candidates_compile_without_spills(name: str, arch: str) -> None:
    workload, machine = WORKLOADS[name], cuda.MACHINES[arch]
    candidate = cuda.default_candidate(workload, machine)
    code = code_of(workload, candidate, arch)
    made = compilers.compiler().machine_code(whole_source(code), arch)
    assert made.cubin.startswith(ELF)
    assert set(made.resources) == {f.name for f in code.functions}
    threads = sizes_of(workload, candidate).threads
    for function, used in made.resources.items():
        assert (used.spilled_bytes, used.stack_bytes) == (0, 0), f"{function} {arch}: {used}"
        assert used.registers * threads <= machine.registers


@pytest.mark.parametrize("name", OPTIONS)
def test_options_spill_little_from_the_largest_tiles(name: str) -> None:
    """They take registers that a record's own workload leaves; in its kernels none is spilled."""
    workload = replace(WORKLOADS["tensor"], query_length=2048, key_length=4096, **OPTIONS[name])
    source = runtime.select(workload, named_target("cuda-sm_90"))
    assert source.candidate.variant == "fused_tensor"
    text = whole_source(code_of(workload, source.candidate, "sm_90"))
    made = compilers.compiler().machine_code(text, "sm_90")
    assert max(used.spilled_bytes for used in made.resources.values()) <= 64


def test_bfloat16_and_masks_on_tensor_cores() -> None:
    workload = AttentionWorkload(head_dim=64, dtype="bfloat16", causal=True)
    candidate = cuda.default_candidate(workload, cuda.MACHINES["sm_100"])
    assert candidate.variant == "fused_tensor"
    text = whole_source(code_of(workload, candidate, "sm_100"))
    made = compilers.compiler().machine_code(text, "sm_100")
    assert [used.spilled_bytes for used in made.resources.values()] == [0]
    ptx = compilers.compiler().ptx(text, "sm_80")
    assert "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32" in ptx
    assert "ldmatrix.sync.aligned.m8n8.x4.trans" in ptx


def test_turing_multiplies_float16_alone() -> None:
    narrow = AttentionWorkload(head_dim=64, dtype="float16")
    assert cuda.default_candidate(narrow, cuda.MACHINES["sm_75"]).variant == "fused_tensor"
    brain = AttentionWorkload(head_dim=64, dtype="bfloat16")
    assert cuda.default_candidate(brain, cuda.MACHINES["sm_75"]).variant == "fused"


def test_ptx_is_for_the_architecture() -> None:
    workload = WORKLOADS["prefill"]
    code = code_of(workload, cuda.default_candidate(workload, cuda.MACHINES["sm_80"]))
    text = compilers.compiler().ptx(whole_source(code), "sm_80")
    assert ".target sm_80" in text
    assert "ld.shared.v4" in text  # rows of shared memory are read by vectors
    assert "ld.global.v4" in text.replace(".nc", "")
    assert text.count("ex2.approx") >= 16  # the scores of a thread, none of them by a polynomial


def test_what_does_not_compile_is_an_error_with_the_log() -> None:
    with pytest.raises(KernelBuildError, match="undefined_name"):
        compilers.compiler().machine_code("__global__ void f() { undefined_name; }", "sm_80")


def test_without_a_compiler_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compilers, "nvrtc", lambda: None)
    monkeypatch.setattr(toolkit, "nvcc", lambda: None)
    compilers.compiler.cache_clear()
    with pytest.raises(KernelBuildError, match=r"pip install 'tvm-attention\[cuda\]'"):
        compilers.compiler()
    compilers.compiler.cache_clear()


def test_resources_are_read_for_each_function() -> None:
    report = """ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function 'a' for 'sm_80'
ptxas info    : Function properties for a
    24 bytes stack frame, 40 bytes spill stores, 44 bytes spill loads
ptxas info    : Used 80 registers, used 1 barriers, 520 bytes cmem[0]
ptxas info    : Compiling entry function 'b' for 'sm_80'
ptxas info    : Function properties for b
ptxas         .     0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 33 registers"""
    assert read_resources(report) == {"a": Resources(80, 24, 84), "b": Resources(33, 0, 0)}


def test_nvcc_makes_the_same_of_a_function_as_nvrtc() -> None:
    program, library = toolkit.nvcc(), nvrtc.nvrtc()
    found = [c for c in (library, program and compilers.Nvcc(program)) if c]
    assert found, "expected NVRTC or nvcc"
    workload = WORKLOADS["tensor"]
    code = code_of(workload, cuda.default_candidate(workload, cuda.MACHINES["sm_87"]), "sm_87")
    for compiler in found:
        made = compiler.machine_code(whole_source(code), "sm_87")
        assert made.cubin.startswith(ELF)
        assert set(made.resources) == {f.name for f in code.functions}
        assert [used.spilled_bytes for used in made.resources.values()] == [0]


def test_machine_code_is_made_by_a_compiler_that_the_driver_takes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Library:
        def __init__(self, major: int) -> None:
            self.major = major

    def chosen(driver: tuple[int, int] | None, *majors: int) -> int:
        monkeypatch.setattr(nvrtc, "newest_cuda", lambda: driver)
        monkeypatch.setattr(nvrtc, "_libraries", lambda: iter(map(Library, majors)))
        monkeypatch.setattr(nvrtc, "Nvrtc", lambda library: library)
        nvrtc.nvrtc.cache_clear()
        found = nvrtc.nvrtc()
        nvrtc.nvrtc.cache_clear()
        assert found is not None
        return found.major

    assert chosen((12, 4), 13, 12) == 12
    assert chosen((13, 0), 13, 12) == 13
    assert chosen(None, 13, 12) == 13  # no GPU here: for other machines
    assert chosen((12, 4), 13) == 13  # the driver says what it thinks of that
