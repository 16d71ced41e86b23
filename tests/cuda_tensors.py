"""torch tensors that say they are on a GPU, and kernels for them that are soon compiled."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from test_cuda_driver import OnGPU

from tvm_attention import runtime
from tvm_attention.schedules import cuda


@pytest.fixture(autouse=True)
def small_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """Default schedules that are soon compiled, and no records."""
    monkeypatch.setattr(cuda, "_TILES", ((4, 8, 2, 2),))
    monkeypatch.setattr(cuda, "_SPLIT_KV_TILES", ((16, 1),))
    monkeypatch.setattr(cuda, "_TENSOR_TILES", ((8, 2, 4),))
    monkeypatch.setattr(runtime, "available_logs", list)


def here(tensor: Any) -> Any:
    """The same tensor on the processor."""
    return tensor.as_subclass(torch.Tensor)


def there(tensor: Any) -> Any:
    return tensor.as_subclass(OnGPU)


def assert_same(found: Any, expected: Any, error: float = 1e-5) -> None:
    assert type(found) is OnGPU
    assert torch.isfinite(expected).all()
    assert (here(found).float() - expected.float()).abs().max() <= error
