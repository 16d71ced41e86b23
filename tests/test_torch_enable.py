"""Routing torch's own attention to ours: every way it is called, and what is served."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch.nn import functional as F  # noqa: E402
from torch.nn.functional import scaled_dot_product_attention as imported  # noqa: E402
from torch_routing import calls_of_ours, tensors, torch_left_as_it_was  # noqa: E402

from tvm_attention import torch as ours  # noqa: E402

Way = Callable[..., Any]
WAYS: dict[str, Way] = {
    "torch.nn.functional": lambda *a, **k: F.scaled_dot_product_attention(*a, **k),
    "a name imported before": imported,
    "torch._C._nn": torch._C._nn.scaled_dot_product_attention,
    "torch.ops": torch.ops.aten.scaled_dot_product_attention.default,
    "torch.jit": torch.jit.trace(lambda *a: imported(*a), (torch.ones(1, 1, 2, 4),) * 3),
}


@pytest.fixture(autouse=True)
def _torch_as_it_was() -> Iterator[None]:
    with torch_left_as_it_was():
        yield


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    return calls_of_ours(monkeypatch)


@pytest.mark.parametrize("mode", [torch.enable_grad, torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_every_way_to_call_it_is_ours(way: Way, mode: Any, calls: list[Any]) -> None:
    arrays = tensors()
    with mode():
        expected = way(*arrays)
        assert not calls
        with ours.enabled():
            found = way(*arrays)
        assert len(calls) == 1
        way(*arrays)
    assert len(calls) == 1
    torch.testing.assert_close(found, expected)


MASK = torch.rand(9, 9) < 0.5
SERVED: dict[str, tuple[tuple[Any, ...], dict[str, Any]]] = {
    "causal": (tensors(), {"is_causal": True}),
    "positional": ((*tensors(), None, 0.0, True), {}),
    "bool mask": (tensors(), {"attn_mask": MASK}),
    "causal and a mask": (tensors(), {"attn_mask": MASK, "is_causal": True}),
    "added mask, scale": (tensors(), {"attn_mask": MASK.float(), "scale": 0.3}),
    "grouped queries": (
        (tensors()[0], *(x[:, :2] for x in tensors()[1:])),
        {"enable_gqa": True},
    ),
    "one batch of keys": ((tensors()[0], *(x[:1] for x in tensors()[1:])), {}),
    "float16": (tensors(dtype=torch.float16), {}),
    "bfloat16": (tensors(dtype=torch.bfloat16), {}),
    "five axes": (tuple(x[None] for x in tensors()), {}),
    "two axes": (tuple(x[0, 0] for x in tensors()), {}),
    "parameters": (tuple(torch.nn.Parameter(x, requires_grad=False) for x in tensors()), {}),
}


@pytest.mark.parametrize(("arrays", "options"), SERVED.values(), ids=SERVED)
def test_what_is_served(arrays: tuple[Any, ...], options: Any, calls: list[Any]) -> None:
    expected = F.scaled_dot_product_attention(*arrays, **options)
    with ours.enabled(), warnings.catch_warnings():
        warnings.simplefilter("error")
        found = F.scaled_dot_product_attention(*arrays, **options)
    assert len(calls) == 1
    assert found.dtype == expected.dtype
    eps = torch.finfo(found.dtype).eps
    torch.testing.assert_close(found, expected, rtol=16 * eps, atol=2 * eps + 2e-6)


def test_autocast_works_as_before(calls: list[Any]) -> None:
    with ours.enabled(), torch.autocast("cpu", dtype=torch.bfloat16):
        assert F.scaled_dot_product_attention(*tensors()).dtype == torch.bfloat16
    assert calls[0][0].dtype == torch.bfloat16


def test_multi_head_attention_and_encoders(calls: list[Any]) -> None:
    torch.manual_seed(0)
    layer = torch.nn.TransformerEncoderLayer(32, 4, 64, batch_first=True)
    encoder = torch.nn.TransformerEncoder(layer, 2).eval()
    attention, rows = layer.self_attn.eval(), torch.randn(2, 9, 32)
    padded = torch.arange(9) >= torch.tensor([[7], [9]])
    with torch.no_grad():
        for count, module in (
            (1, lambda: attention(rows, rows, rows, need_weights=False)[0]),
            (2, lambda: encoder(rows)),
            (2, lambda: encoder(rows, src_key_padding_mask=padded)[~padded]),
        ):
            calls.clear()
            expected = module()
            assert not calls
            with ours.enabled():
                found = module()
            assert len(calls) == count
            torch.testing.assert_close(found, expected)
