"""Routing torch's attention in tests: what is counted, compiled and put back."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch.nn import functional as F  # noqa: E402

from tvm_attention import torch as ours  # noqa: E402
from tvm_attention.torch import routed  # noqa: E402

OPERATOR = "tvm_attention.scaled_dot_product_attention.default"


def calls_of_ours(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What comes to our function from now on, and is computed or raised there."""
    came: list[Any] = []
    real = routed.ours

    def counted(*arguments: Any) -> Any:
        came.append(arguments)
        return real(*arguments)

    monkeypatch.setattr(routed, "ours", counted)
    return came


@contextmanager
def torch_left_as_it_was() -> Iterator[None]:
    """Inside, nothing is known of an earlier compilation; at the end all must be put back."""
    before = state()
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()
    assert not ours.is_enabled()
    assert state() == before


def state() -> Any:
    """All that routing changes."""
    has = torch._C._dispatch_has_kernel_for_dispatch_key
    name = "aten::scaled_dot_product_attention"
    return (
        F.scaled_dot_product_attention, F.multi_head_attention_forward,
        torch._C._nn.scaled_dot_product_attention, torch.backends.mha.get_fastpath_enabled(),
        has(name, "CPU"), has(name, "AutogradCPU"), torch._C._dispatch_dump_table(name),
    )  # fmt: skip


def tensors(**options: Any) -> tuple[Any, Any, Any]:
    torch.manual_seed(0)
    query, key, value = (torch.randn(2, 4, 9, 16).to(**options) for _ in range(3))
    return query, key, value


def graphs_of(function: Any) -> tuple[Any, list[Any]]:
    """The function compiled to one graph, and the attention operators of each graph compiled."""
    from torch._dynamo.backends.common import aot_autograd

    graphs: list[Any] = []

    def keep(module: Any, _: Any) -> Any:
        nodes = [str(n.target) for n in module.graph.nodes if "attention" in str(n.target)]
        graphs.append(nodes)
        return module

    backend = aot_autograd(fw_compiler=keep, inference_compiler=keep)
    return torch.compile(function, fullgraph=True, backend=backend), graphs
