"""Routing torch's own attention to ours: every way it is called, what stays torch's, and the way back."""

from __future__ import annotations

import subprocess
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch.nn import functional as F  # noqa: E402
from torch.nn.functional import scaled_dot_product_attention as imported  # noqa: E402

from tvm_attention import InvalidValueError, KernelBuildError  # noqa: E402
from tvm_attention import torch as ours  # noqa: E402
from tvm_attention.torch import FallbackWarning, routed  # noqa: E402

Way = Callable[..., Any]
WAYS: dict[str, Way] = {
    "torch.nn.functional": lambda *a, **k: F.scaled_dot_product_attention(*a, **k),
    "a name imported before": imported,
    "torch._C._nn": torch._C._nn.scaled_dot_product_attention,
    "torch.ops": torch.ops.aten.scaled_dot_product_attention.default,
    "torch.jit": torch.jit.trace(lambda *a: imported(*a), (torch.ones(1, 1, 2, 4),) * 3),
}


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What came to our function, and computed or raised there."""
    came: list[Any] = []
    real = routed.ours

    def counted(*arguments: Any) -> Any:
        came.append(arguments)
        return real(*arguments)

    monkeypatch.setattr(routed, "ours", counted)
    return came


@pytest.fixture(autouse=True)
def _torch_as_it_was() -> Iterator[None]:
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


STAYING: dict[str, tuple[tuple[Any, ...], dict[str, Any], str]] = {
    "float64": (tensors(dtype=torch.float64), {}, "dtype: expected float32"),
    "dropout": (tensors(), {"dropout_p": 0.5}, "dropout"),
    "five axes": (tuple(x[None] for x in tensors()), {}, "2 to 4 axes"),
    "many dimensions": (tuple(x.repeat(1, 1, 1, 40) for x in tensors()), {}, "at most 512"),
    "a conjugate's part": (
        (torch.view_as_complex(torch.randn(2, 4, 9, 16, 2)).conj().imag, *tensors()[1:]), {},
        "pending negation",
    ),
    "another device": (tensors(device="meta"), {}, "on the cpu, got one on meta"),
}  # fmt: skip


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
        for axes in (1, 2):
            F.scaled_dot_product_attention(*(x.reshape(*(1,) * axes, *x.shape) for x in tensors()))
    assert len(recwarn) == 1


def test_autocast_works_as_before(calls: list[Any]) -> None:
    with ours.enabled(), torch.autocast("cpu", dtype=torch.bfloat16):
        assert F.scaled_dot_product_attention(*tensors()).dtype == torch.bfloat16
    assert calls[0][0].dtype == torch.bfloat16


def test_modes_that_watch_operators_see_torchs() -> None:
    from torch.utils.flop_counter import FlopCounterMode

    with FlopCounterMode(display=False) as expected:
        F.scaled_dot_product_attention(*tensors())
    found = FlopCounterMode(display=False)
    with ours.enabled(), found, pytest.warns(FallbackWarning, match="TorchDispatchMode"):
        F.scaled_dot_product_attention(*tensors())
    assert found.get_total_flops() == expected.get_total_flops()


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


OPERATOR = "tvm_attention.scaled_dot_product_attention.default"


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


def test_enabling_disabling_and_blocks() -> None:
    before = state()
    ours.enable()
    ours.enable()
    assert ours.is_enabled()
    changed = F.scaled_dot_product_attention
    assert changed is not before[0]
    assert changed.__name__ == before[0].__name__
    with ours.enabled():
        with ours.enabled():
            ours.disable()
            assert F.scaled_dot_product_attention is changed
        assert ours.is_enabled()
    assert state() == before
    ours.disable()
    assert state() == before
    with pytest.raises(InvalidValueError, match="given back"), ours.enabled():
        raise InvalidValueError("given back after an error, too")
    assert state() == before


def test_what_others_changed_meanwhile_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    mine = lambda *a, **k: None  # noqa: E731
    fast = torch.backends.mha.get_fastpath_enabled()
    with monkeypatch.context() as patch:
        with ours.enabled():
            patch.setattr(F, "scaled_dot_product_attention", mine)
        assert F.scaled_dot_product_attention is mine
        patch.undo()
        # What was there when routing began is not torch's own, and is put back as it was.
        patch.setattr(F, "scaled_dot_product_attention", mine)
        with ours.enabled():
            assert F.scaled_dot_product_attention is not mine
        assert F.scaled_dot_product_attention is mine
    F.scaled_dot_product_attention = imported
    torch.backends.mha.set_fastpath_enabled(False)
    with ours.enabled():
        pass
    assert not torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(fast)


def test_threads_that_come_and_go() -> None:
    """Blocks of many threads overlap; in each, its own calls are right and routed."""
    arrays = tensors()
    expected, wrong = imported(*arrays), []

    def work() -> None:
        for _ in range(40):
            with ours.enabled():
                found = F.scaled_dot_product_attention(*arrays)
                if not ours.is_enabled() or not torch.allclose(found, expected, atol=1e-5):
                    wrong.append(found)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_it_is_there_by_its_name_alone_and_torch_only_with_it() -> None:
    code = (
        "import sys, tvm_attention as ta; assert 'torch' not in sys.modules; ta.torch.enable(); "
        "import torch; print(torch.nn.functional.scaled_dot_product_attention.__module__, "
        "ta.torch.is_enabled(), 'transformers' in sys.modules)"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert said.stdout.split()[1:] == ["True", "False"]
