"""torch's own attention and operators on a GPU, on the stand-in driver."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from cuda_tensors import assert_same, here, small_tiles
from test_cuda_dlpack import library
from test_cuda_driver import OnGPU, machine, on_gpu, stand_in
from torch.nn import functional as F

import tvm_attention.torch
from tvm_attention import (
    attention,
)
from tvm_attention.torch import FallbackWarning, fallback, operators, routed

__all__ = ["library", "machine", "small_tiles", "stand_in"]  # fixtures

CUDA = torch._C.DispatchKeySet(torch._C.DispatchKey.CUDA)


def test_torchs_operators_have_an_entry_for_gpus(machine: Any) -> None:
    q, k, v = on_gpu(1, 4, 9, 32), on_gpu(1, 4, 20, 32), on_gpu(1, 4, 20, 32)
    found = operators.attention.redispatch(CUDA, q, k, v, None, "bottom_right")
    assert_same(found, attention(*map(here, (q, k, v)), causal="bottom_right"))
    has = torch._C._dispatch_has_kernel_for_dispatch_key
    for name in ("attention", "scaled_dot_product_attention"):
        for key in ("CUDA", "AutogradCUDA", "AutocastCUDA"):
            assert has(f"tvm_attention::{name}", key)
    with torch._subclasses.FakeTensorMode():
        fake = torch.empty(1, 4, 9, 32, device="cuda")
        traced = torch.ops.tvm_attention.attention(fake, fake, fake)
    assert (traced.device.type, traced.shape) == ("cuda", fake.shape)


def table_of_torchs() -> str:
    return str(torch._C._dispatch_dump_table("aten::scaled_dot_product_attention"))


def test_gpus_are_routed_if_that_is_asked_for(
    machine: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, mine = table_of_torchs(), tvm_attention.torch
    q, k, v = on_gpu(1, 4, 9, 32), on_gpu(1, 4, 20, 32), on_gpu(1, 4, 20, 32)
    expected = F.scaled_dot_product_attention(*map(here, (q, k, v)))
    monkeypatch.setattr(routed, "_PLAIN", (*routed._PLAIN, OnGPU))
    with mine.enabled():
        assert fallback.served == ("cpu",)
        inside = table_of_torchs()
        with mine.enabled(cuda=True):
            assert fallback.served == ("cpu", "cuda")
            found = routed.torch_operator.redispatch(CUDA, q, k, v)
            assert_same(found, expected)
        assert table_of_torchs() == inside
    mine.enable(cuda=True)
    mine.enable()
    assert fallback.served == ("cpu",)
    mine.disable()
    assert table_of_torchs() == before


class NotOfTheProcessor(OnGPU):
    """A tensor that torch's own function computes all the same."""

    is_cpu = property(lambda self: False)  # type: ignore[assignment]

    def __new__(cls, tensor: Any) -> Any:
        return tensor.as_subclass(cls)


def test_calls_on_a_gpu_that_is_not_routed_say_how(machine: Any) -> None:
    q = on_gpu(1, 4, 9, 32)
    with (
        tvm_attention.torch.enabled(),
        pytest.warns(FallbackWarning, match=r"got one on cuda; enable\(cuda=True\)"),
    ):
        routed.named(*[NotOfTheProcessor(q)] * 3)
