"""What stays torch's while its attention is routed to ours, and what is said of it."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch.nn import functional as F  # noqa: E402
from torch.nn.functional import scaled_dot_product_attention as imported  # noqa: E402
from torch_routing import OPERATOR, calls_of_ours, graphs_of, tensors, torch_left_as_it_was  # noqa: E402

from tvm_attention import KernelBuildError  # noqa: E402
from tvm_attention import torch as ours  # noqa: E402
from tvm_attention.torch import FallbackWarning, routed  # noqa: E402

MASK = torch.rand(9, 9) < 0.5


STAYING: dict[str, tuple[tuple[Any, ...], dict[str, Any], str]] = {
    "float64": (tensors(dtype=torch.float64), {}, "dtype: expected float32"),
    "dropout": (tensors(), {"dropout_p": 0.5}, "dropout"),
    "many dimensions": (tuple(x.repeat(1, 1, 1, 40) for x in tensors()), {}, "at most 512"),
    "a conjugate's part": (
        (torch.view_as_complex(torch.randn(2, 4, 9, 16, 2)).conj().imag, *tensors()[1:]), {},
        "pending negation",
    ),
    "another device": (tensors(device="meta"), {}, "on the cpu, got one on meta"),
}  # fmt: skip


@pytest.fixture(autouse=True)
def _torch_as_it_was() -> Iterator[None]:
    with torch_left_as_it_was():
        yield


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    return calls_of_ours(monkeypatch)


@pytest.mark.parametrize(("arrays", "options", "reason"), STAYING.values(), ids=STAYING)
def test_what_is_not_served_is_torchs_and_said_once(
    arrays: tuple[Any, ...], options: Any, reason: str
) -> None:
    torch.manual_seed(1)
    expected = F.scaled_dot_product_attention(*arrays, **options)
    with ours.enabled():
        torch.manual_seed(1)
        with pytest.warns(FallbackWarning, match=reason) as said:
            found = F.scaled_dot_product_attention(*arrays, **options)
        assert [warning.filename for warning in said] == [__file__]
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            F.scaled_dot_product_attention(*arrays, **options)
    if not found.is_meta:
        assert torch.equal(found, expected)
    with ours.enabled(), pytest.warns(FallbackWarning, match=reason):  # enabled anew, said anew
        F.scaled_dot_product_attention(*arrays, **options)


@pytest.mark.parametrize("place", range(4))
def test_gradients_are_torchs(place: int, calls: list[Any]) -> None:
    def gradient() -> Any:
        arrays = [*tensors(), torch.zeros(9, 9)]
        arrays[place].requires_grad_()
        F.scaled_dot_product_attention(*arrays).square().sum().backward()
        return arrays[place].grad

    expected = gradient()
    with ours.enabled(), pytest.warns(FallbackWarning, match="gradient"):
        found = gradient()
    assert not calls
    assert torch.equal(found, expected)


def _in_plain_steps(function: Any) -> Any:
    """torch's flash attention has no forward derivative."""
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        return function()


def test_transforms_of_torch_func_are_torchs() -> None:
    arrays = tensors()
    tangents = tuple(torch.ones_like(x) for x in arrays)
    for transformed in (
        lambda: torch.func.grad(lambda *x: imported(*x).sum())(*arrays),
        lambda: _in_plain_steps(lambda: torch.func.jvp(imported, arrays, tangents)[1]),
        lambda: torch.func.vmap(imported)(*arrays),
    ):
        expected = transformed()
        with ours.enabled(), warnings.catch_warnings():
            warnings.simplefilter("ignore", FallbackWarning)
            torch.testing.assert_close(transformed(), expected)


def test_what_is_wrong_is_torchs_error_and_no_fallback() -> None:
    query, key, value = tensors()
    wrong: list[tuple[tuple[Any, ...], dict[str, Any]]] = [
        ((query, key, value), {"attn_mask": MASK[:5]}),
        ((query, key[..., :8], value), {}),
        ((query, key.half(), value), {}),
    ]
    with ours.enabled(), warnings.catch_warnings():
        warnings.simplefilter("error")
        for arrays, options in wrong:
            with pytest.raises(RuntimeError) as raised:
                F.scaled_dot_product_attention(*arrays, **options)
            assert type(raised.value) is RuntimeError


def test_a_kernel_that_cannot_be_built_leaves_the_call_to_torch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(*_: Any) -> Any:
        raise KernelBuildError("the disk is full")

    monkeypatch.setattr(routed, "ours", fail)
    expected = F.scaled_dot_product_attention(*tensors())
    with ours.enabled(), pytest.warns(FallbackWarning, match="the disk is full"):
        assert torch.equal(F.scaled_dot_product_attention(*tensors()), expected)


def test_reasons_that_differ_in_numbers_are_one(recwarn: pytest.WarningsRecorder) -> None:
    with ours.enabled():
        for times in (33, 40):  # head dimensions of more than 512
            F.scaled_dot_product_attention(*(x.repeat(1, 1, 1, times) for x in tensors()))
    assert len(recwarn) == 1


def test_modes_that_watch_operators_see_torchs() -> None:
    from torch.utils.flop_counter import FlopCounterMode

    with FlopCounterMode(display=False) as expected:
        F.scaled_dot_product_attention(*tensors())
    found = FlopCounterMode(display=False)
    with ours.enabled(), found, pytest.warns(FallbackWarning, match="TorchDispatchMode"):
        F.scaled_dot_product_attention(*tensors())
    assert found.get_total_flops() == expected.get_total_flops()


def test_multi_head_attention_that_gives_its_weights_is_said_to_be_torchs(
    calls: list[Any],
) -> None:
    attention, rows = torch.nn.MultiheadAttention(32, 4).eval(), torch.randn(9, 2, 32)
    projections = attention.in_proj_weight, attention.in_proj_bias
    out = attention.out_proj.weight, attention.out_proj.bias

    def by_place(need_weights: bool) -> Any:
        own = (*projections, None, None, False, 0.0, *out, False, None, need_weights)
        return F.multi_head_attention_forward(rows, rows, rows, 32, 4, *own)

    with torch.no_grad():
        expected = attention(rows, rows, rows)
        with warnings.catch_warnings(), ours.enabled():
            warnings.simplefilter("error", FallbackWarning)
            attention(rows, rows, rows, need_weights=False)
            by_place(False)
            assert len(calls) == 2
            with pytest.raises(FallbackWarning, match="need_weights=False"):
                by_place(True)
            torch.testing.assert_close(attention(rows, rows, rows), expected)  # said once
        with ours.enabled(), pytest.warns(FallbackWarning, match="forms the weights itself"):
            torch.testing.assert_close(attention(rows, rows, rows), expected)
        compiled, graphs = graphs_of(lambda x: attention(x, x, x))
        with ours.enabled(), pytest.warns(FallbackWarning, match="forms the weights itself"):
            torch.testing.assert_close(compiled(rows), expected)
    assert OPERATOR not in graphs[0]
