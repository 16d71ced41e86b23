"""Routing in compiled functions and exported programs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch.nn import functional as F  # noqa: E402
from torch.nn.functional import scaled_dot_product_attention as imported  # noqa: E402
from torch_routing import OPERATOR, graphs_of, tensors, torch_left_as_it_was  # noqa: E402

from tvm_attention import torch as ours  # noqa: E402
from tvm_attention.torch import FallbackWarning  # noqa: E402


@pytest.fixture(autouse=True)
def _torch_as_it_was() -> Iterator[None]:
    with torch_left_as_it_was():
        yield


def test_compiled_functions_follow() -> None:
    def layer(*arrays: Any) -> Any:
        return F.scaled_dot_product_attention(*arrays, is_causal=True) * 2

    compiled, graphs = graphs_of(layer)
    arrays = tensors()
    expected = layer(*arrays)
    for routed_now in (False, True, False):
        with ours.enabled() if routed_now else torch.no_grad():
            torch.testing.assert_close(compiled(*arrays), expected)
            torch.testing.assert_close(compiled(*arrays), expected)
    assert [OPERATOR in graph for graph in graphs] == [False, True]  # the third is the first again


def test_compiled_multi_head_attention() -> None:
    attention = torch.nn.MultiheadAttention(32, 4, batch_first=True).eval()
    rows = torch.randn(2, 9, 32)

    def layer(x: Any) -> Any:
        return attention(x, x, x, need_weights=False)[0]

    with torch.no_grad():
        expected = layer(rows)
        with ours.enabled():
            compiled, graphs = graphs_of(layer)
            torch.testing.assert_close(compiled(rows), expected)
    assert graphs == [[OPERATOR]]


def test_compiled_calls_that_stay_torchs() -> None:
    arrays = tensors(dtype=torch.float64)
    compiled, graphs = graphs_of(lambda *x: F.scaled_dot_product_attention(*x))
    expected = imported(*arrays)
    query = tensors()[0].requires_grad_()
    with ours.enabled():
        with pytest.warns(FallbackWarning, match="got torch.float64"):
            found = compiled(*arrays)
        with pytest.warns(FallbackWarning, match="gradient"):
            compiled(query, *tensors()[1:]).sum().backward()
    torch.testing.assert_close(found, expected)
    assert query.grad is not None
    assert OPERATOR not in [name for graph in graphs for name in graph]


def test_more_than_four_axes_stay_torchs_in_a_graph() -> None:
    arrays = tuple(x[None] for x in tensors())
    compiled, graphs = graphs_of(lambda *x: F.scaled_dot_product_attention(*x))
    with ours.enabled(), pytest.warns(FallbackWarning, match="2 to 4 axes"):
        torch.testing.assert_close(compiled(*arrays), imported(*arrays))
    assert OPERATOR not in graphs[0]


def test_a_name_imported_before_is_torchs_in_a_compiled_function() -> None:
    graphs_of(lambda *x: imported(*x))[0](*tensors())  # what compilers keep of that is forgotten
    torch._dynamo.reset()
    compiled, graphs = graphs_of(lambda *x: imported(*x))
    with ours.enabled(), pytest.warns(FallbackWarning, match="under a name of its own"):
        torch.testing.assert_close(compiled(*tensors()), imported(*tensors()))
    assert OPERATOR not in graphs[0]


class _Layer(torch.nn.Module):  # type: ignore[misc]
    def forward(self, query: Any, key: Any, value: Any) -> Any:
        return F.scaled_dot_product_attention(query, key, value)


@pytest.mark.parametrize("strict", [False, True])
def test_exported_programs(strict: bool) -> None:
    with ours.enabled():
        program = torch.export.export(_Layer(), tensors(), strict=strict)
    targets = [str(n.target) for n in program.graph.nodes if n.op == "call_function"]
    assert targets == [OPERATOR]
    torch.testing.assert_close(program.module()(*tensors()), imported(*tensors()))
