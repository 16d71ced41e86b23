"""The operators: what torch's own checks say of them, and that compiled and exported graphs hold them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import tvm_attention  # noqa: E402
from tvm_attention import UnsupportedError, functional  # noqa: E402
from tvm_attention.torch import attention, operators, scaled_dot_product_attention  # noqa: E402

torchs_attention = torch.nn.functional.scaled_dot_product_attention
CAUSAL = {"causal": "bottom_right"}


def tensors(
    batch: int = 2, heads: int = 4, rows: int = 9, keys: int = 13, dim: int = 16, **options: Any
) -> tuple[Any, Any, Any]:
    kv, value_dim = options.pop("kv", heads), options.pop("value_dim", dim)
    torch.manual_seed(0)
    shapes = ((heads, rows, dim), (kv, keys, dim), (kv, keys, value_dim))
    query, key, value = (torch.randn(batch, *shape).to(**options) for shape in shapes)
    return query, key, value


def rows_first(*arrays: Any) -> tuple[Any, ...]:
    """The same, laid out as (batch, rows, heads, dim)."""
    return tuple(x.transpose(1, 2).contiguous().transpose(1, 2) for x in arrays)


def captured(graphs: list[Any]) -> Callable[..., Any]:
    """A compiler that computes nothing else, and keeps the operators of the graphs it was given."""
    from torch._dynamo.backends.common import aot_autograd

    def keep(module: Any, _: Any) -> Any:
        graphs.append([node.target for node in module.graph.nodes if node.op == "call_function"])
        return module

    return aot_autograd(fw_compiler=keep, inference_compiler=keep)


@pytest.fixture(autouse=True)
def _fresh_compiler() -> Any:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "causal": CAUSAL,
    "window": {"causal": "bottom_right", "window": [3, 0]},
    "bool mask": {"mask": torch.arange(9)[:, None] >= torch.arange(13) - 3},
    "added mask": {"mask": torch.linspace(-1, 1, 13).repeat(9, 1), "scale": 0.5},
    "small arrays": {
        "alibi_slopes": torch.full((4,), 0.1),
        "sinks": torch.zeros(4),
        "kv_lengths": torch.tensor([13, 5]),
    },
}


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_torch_finds_nothing_wrong(options: dict[str, Any]) -> None:
    arrays = tensors()
    torch.library.opcheck(attention, arrays, options)
    expected = tvm_attention.attention(
        *arrays, **{k: tuple(v) if k == "window" else v for k, v in options.items()}
    )
    assert torch.equal(attention(*arrays, **options), expected)


LAYOUTS = {
    "rows first": rows_first(*tensors()),
    "grouped queries": tensors(kv=2),
    "values of another size": tensors(value_dim=8),
    "without heads": tuple(x[:, 0] for x in tensors()),
    "a slice of more": tuple(x[:, :, 1:] for x in tensors(rows=10, keys=14)),
    "one query": tensors(rows=1),
    "no query": tensors(rows=0),
    "no key": tensors(keys=0),
    "float16": tensors(dtype=torch.float16),
    "bfloat16": tensors(dtype=torch.bfloat16),
}


@pytest.mark.parametrize("arrays", LAYOUTS.values(), ids=LAYOUTS)
def test_no_layout_is_wrong(arrays: tuple[Any, ...]) -> None:
    """The meta implementation gives the strides, too: opcheck compares them."""
    checks = ("test_schema", "test_faketensor")  # the others compile, as above
    torch.library.opcheck(attention, arrays, test_utils=checks)
    options = {"enable_gqa": True}
    torch.library.opcheck(scaled_dot_product_attention, arrays, options, test_utils=checks)


def test_leading_axes_are_broadcast_as_torch_does() -> None:
    query, key, value = tensors()
    for arrays in ((query[:1], key, value), (query, key[:1, :1], value[:, :1])):
        torch.library.opcheck(scaled_dot_product_attention, arrays)
        torch.testing.assert_close(scaled_dot_product_attention(*arrays), torchs_attention(*arrays))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_a_compiled_function_is_one_graph_with_the_operator(dtype: Any) -> None:
    graphs: list[Any] = []

    def layer(query: Any, key: Any, value: Any) -> Any:
        return attention(query * 2, key, value, causal="bottom_right", window=(4, -1)) + 1

    compiled = torch.compile(layer, fullgraph=True, backend=captured(graphs))
    arrays = tensors(dtype=dtype)
    expected = tvm_attention.attention(
        arrays[0] * 2, *arrays[1:], causal="bottom_right", window=(4, -1)
    )
    assert torch.equal(compiled(*arrays), expected + 1)
    ours = [torch.ops.tvm_attention.attention.default]
    assert graphs == [[torch.ops.aten.mul.Tensor, *ours, torch.ops.aten.add.Tensor]]


def test_lengths_that_change_are_compiled_once() -> None:
    graphs: list[Any] = []
    compiled = torch.compile(
        lambda *arrays: scaled_dot_product_attention(*arrays, is_causal=True),
        fullgraph=True, dynamic=True, backend=captured(graphs),
    )  # fmt: skip
    for rows, keys in ((9, 13), (20, 31), (5, 5)):
        arrays = tensors(rows=rows, keys=keys)
        torch.testing.assert_close(compiled(*arrays), torchs_attention(*arrays, is_causal=True))
    assert graphs == [[torch.ops.tvm_attention.scaled_dot_product_attention.default]]


def test_inductor_calls_the_operator_on_the_callers_own_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: list[int] = []
    real = functional.attention
    functional.forget_calls()  # a call that came before would not come by there

    def attention_seen(query: Any, key: Any, value: Any, **options: Any) -> Any:
        seen.extend(x.data_ptr() for x in (query, key, value))
        return real(query, key, value, **options)

    monkeypatch.setattr(operators.functional, "attention", attention_seen)
    arrays = rows_first(*tensors())
    compiled = torch.compile(lambda *x: attention(*x, causal="top_left"), fullgraph=True)
    expected = torchs_attention(*arrays, is_causal=True)
    torch.testing.assert_close(compiled(*arrays), expected)
    assert seen == [x.data_ptr() for x in arrays]


class _Layer(torch.nn.Module):  # type: ignore[misc]
    def forward(self, query: Any, key: Any, value: Any) -> Any:
        return attention(query, key, value, causal="bottom_right")


@pytest.mark.parametrize("strict", [False, True])
def test_an_exported_program_holds_the_operator_for_every_length(strict: bool) -> None:
    lengths = {2: torch.export.Dim("rows", max=512)}
    program = torch.export.export(
        _Layer(), tensors(keys=9), dynamic_shapes=(lengths,) * 3, strict=strict
    )
    targets = [node.target for node in program.graph.nodes if node.op == "call_function"]
    assert targets == [torch.ops.tvm_attention.attention.default]
    arrays = tensors(rows=33, keys=33)
    expected = tvm_attention.attention(*arrays, **CAUSAL)
    assert torch.equal(program.module()(*arrays), expected)


@pytest.mark.parametrize("operator", [attention, scaled_dot_product_attention], ids=str)
def test_gradients_are_refused(operator: Any) -> None:
    query, key, value = tensors()
    value.requires_grad_()
    with pytest.raises(UnsupportedError, match="requires grad"):
        operator(query, key, value)
    compiled = torch.compile(operator, fullgraph=True, backend="aot_eager")
    with pytest.raises(Exception, match="requires grad, and only the forward pass"):
        compiled(query, key, value)
    for mode in (torch.no_grad, torch.inference_mode):
        with mode():
            expected = torchs_attention(query, key, value)
            torch.testing.assert_close(operator(query, key, value), expected)
            torch.testing.assert_close(compiled(query, key, value), expected)


def test_what_does_not_fit_is_refused_while_compiling() -> None:
    compiled = torch.compile(attention, fullgraph=True, backend="aot_eager")
    query, key, value = tensors()
    with pytest.raises(Exception, match="dtype: expected float32 or"):
        compiled(query.double(), key.double(), value.double())
    with pytest.raises(Exception, match=r"dtype: expected .* alike"):
        compiled(query.half(), key, value)
    with pytest.raises(Exception, match="expected 2 to 4 axes"):
        compiled(query[0, 0, 0], key, value)


def test_autocast_decides_the_dtype_as_it_does_for_torchs() -> None:
    query, key, value = tensors()
    expected = attention(query.bfloat16(), key.bfloat16(), value.bfloat16(), sinks=torch.ones(4))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        mixed = attention(query, key, value.bfloat16(), sinks=torch.ones(4))
        assert torchs_attention(query, key, value).dtype == torch.bfloat16
        compiled = torch.compile(attention, fullgraph=True, backend="aot_eager")
        assert torch.equal(compiled(query, key, value, sinks=torch.ones(4)), expected)
    assert torch.equal(mixed, expected)


def test_dropout_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="dropout_p"):
        scaled_dot_product_attention(*tensors(), dropout_p=0.5)


def test_the_operators_compute_what_the_functions_do() -> None:
    assert operators.attention is attention
    arrays = tensors(kv=2)
    found = torch.ops.tvm_attention.scaled_dot_product_attention(
        *arrays, is_causal=True, enable_gqa=True
    )
    expected = functional.scaled_dot_product_attention(*arrays, is_causal=True, enable_gqa=True)
    assert torch.equal(found, expected)
