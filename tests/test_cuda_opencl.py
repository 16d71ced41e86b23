"""The schedules of CUDA kernels as TVM writes them in OpenCL, on PoCL, against float64."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import cuda_on_cpu
import numpy as np
import opencl_on_cpu
import pytest
from test_cuda_kernels import FUSED, SPLIT_KV, TENSOR, check, mask_of, tensors

from tvm_attention.device_code import DeviceCode
from tvm_attention.schedules import Candidate
from tvm_attention.workload import AttentionWorkload


@pytest.fixture(autouse=True)
def _pocl(monkeypatch: pytest.MonkeyPatch) -> None:
    own = cuda_on_cpu.code_of

    def opencl(
        workload: AttentionWorkload, candidate: Candidate, arch: str = "sm_80"
    ) -> DeviceCode:
        source = opencl_on_cpu.source(workload, candidate)
        return replace(own(workload, candidate, arch), source=source)

    monkeypatch.setattr(cuda_on_cpu, "code_of", opencl)
    monkeypatch.setattr(cuda_on_cpu, "loaded", opencl_on_cpu.OnPoCL)


def test_lengths_around_every_tile() -> None:
    for n, (rows, keys) in enumerate(((1, 1), (7, 33), (8, 16), (17, 15), (9, 49))):
        causal = ("top_left", "bottom_right")[n % 2]
        check(FUSED, *tensors(rows, keys, group=1 + 2 * (n % 2)), causal=causal)


def test_copies_beside_computing_with_masks_and_options() -> None:
    rng = np.random.default_rng(0)
    candidate = FUSED.replace(row_threads=8, overlap=1)
    for rows, keys in ((19, 37), (33, 64)):
        check(
            candidate, *tensors(rows, keys, dims=(40, 64)), mask=mask_of("float32", rows, keys, rng),
            softcap=3.0, sinks=rng.standard_normal(4), window=(20, 5),
            alibi_slopes=rng.random(4).astype("float32"), kv_lengths=np.array([keys, 0], np.int32),
        )  # fmt: skip


@pytest.mark.parametrize("change", [{}, {"row_threads": 16, "vector": 8, "overlap": 1}], ids=str)
def test_tensor_cores(change: dict[str, int]) -> None:
    """Of bfloat16, as PoCL has no float16."""
    for rows, keys in ((1, 17), (15, 16), (40, 37)):
        arrays = tensors(rows, keys, dims=(32, 48), dtype="bfloat16")
        check(TENSOR.replace(**change), *arrays, causal="bottom_right")


def test_decoding() -> None:
    for group, rows, keys in ((2, 2, 1), (1, 3, 15), (2, 2, 100)):
        check(SPLIT_KV, *tensors(rows, keys, group=group), causal="bottom_right")


def test_blocks_of_threads_the_other_way_round_are_noticed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    own = opencl_on_cpu.OnPoCL.launch

    def turned(self: Any, function: Any, *launch: Any) -> None:
        own(self, replace(function, threads=function.threads[::-1]), *launch)

    monkeypatch.setattr(opencl_on_cpu.OnPoCL, "launch", turned)
    with pytest.raises(AssertionError):
        check(FUSED, *tensors(9, 49), causal="bottom_right")
