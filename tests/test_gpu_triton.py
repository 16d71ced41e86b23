"""The peer in Triton, run by a stand-in for Triton: its text is right before a GPU spends minutes on it."""

from __future__ import annotations

import importlib.machinery
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
import triton_stand_in

from bench.gpu import peers
from tvm_attention import reference
from tvm_attention.errors import UnsupportedError
from tvm_attention.workload import AttentionWorkload


@pytest.fixture
def flash(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """bench/gpu/flash_triton.py on the stand-in."""
    for name, module in triton_stand_in.modules().items():
        module.__spec__ = importlib.machinery.ModuleSpec(name, None)
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.delitem(sys.modules, "bench.gpu.flash_triton", raising=False)
    yield importlib.import_module("bench.gpu.flash_triton")
    sys.modules.pop("bench.gpu.flash_triton", None)


@pytest.mark.parametrize("causal", [False, True])
def test_every_size_that_is_tuned_gives_attention(
    flash: Any, causal: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    q, k, v = (torch.randn(1, 2, 150, 32).half() for _ in range(3))
    expected = reference.attention(
        *(x.numpy() for x in (q, k, v)), causal="top_left" if causal else None
    )
    assert len(triton_stand_in.configs) == 5
    for n in range(len(triton_stand_in.configs)):
        monkeypatch.setattr(triton_stand_in, "chosen", n)
        found = flash.attention(q, k, v, causal, 1 / np.sqrt(32)).numpy()
        assert np.abs(found - expected).max() < 2e-3


def test_the_suite_calls_it_where_it_serves(flash: Any) -> None:
    shape = {"head_dim": 32, "query_heads": 2, "query_length": 40, "key_length": 40}
    tensors = [torch.randn(1, 2, 40, 32).half() for _ in range(3)]
    prepare = peers.peers()["triton"]
    found = prepare(AttentionWorkload(dtype="float16", causal=True, **shape), *tensors)()
    expected = reference.attention(*(x.numpy() for x in tensors), causal="top_left")
    assert np.abs(found.numpy() - expected).max() < 2e-3
    with pytest.raises(UnsupportedError, match="16 bits"):
        prepare(AttentionWorkload(**shape), *tensors)


def test_without_triton_the_suite_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers, "find_spec", lambda name: None)
    with pytest.raises(UnsupportedError, match="expected the package triton, got none"):
        peers.peers()["triton"](AttentionWorkload(head_dim=32, dtype="float16"), None, None, None)
