"""The layer with its projections: torch's own, and the equations in float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from sequence_model import Array, drawn, refuses

from tvm_attention import (
    InvalidTypeError,
    InvalidValueError,
    MultiHeadAttention,
    UnsupportedError,
    reference,
)

torch = pytest.importorskip("torch")

HEADS, EMBED = 4, 64


def torch_module(**options: Any) -> Any:
    torch.manual_seed(len(options))
    module = torch.nn.MultiheadAttention(EMBED, HEADS, **options).eval()
    for parameter in module.parameters():
        if parameter.ndim == 1:  # torch starts with zeros
            torch.nn.init.normal_(parameter)
    return module


def as_numpy(layer: MultiHeadAttention) -> MultiHeadAttention:
    """The same layer on NumPy's arrays."""
    weights = [x.numpy() for x in layer._weights.values()]
    biases = {f"{n}_bias": None if b is None else b.numpy() for n, b in layer._biases.items()}
    return MultiHeadAttention(
        *weights, num_heads=layer.num_heads, batch_first=layer.batch_first, **biases
    )


def close(found: Any, expected: Any) -> None:
    np.testing.assert_allclose(np.asarray(found), np.asarray(expected), rtol=0, atol=3e-6)


@pytest.mark.parametrize(
    "options",
    [{}, {"batch_first": True}, {"bias": False, "kdim": 20, "vdim": 28, "batch_first": True}],
    ids=("rows first", "batch first", "other dims"),
)
def test_torch_modules(options: dict[str, Any]) -> None:
    module = torch_module(**options)
    layer = MultiHeadAttention.from_torch(module)
    generator = torch.Generator().manual_seed(1)
    dims = (EMBED, options.get("kdim", EMBED), options.get("vdim", EMBED))
    with torch.no_grad():
        arrays = [
            torch.randn(3, n, d, generator=generator)
            for n, d in zip((7, 11, 11), dims, strict=True)
        ]
        hidden = torch.rand(3, HEADS, 7, 11, generator=generator) < 0.2
        if not module.batch_first:
            arrays = [x.transpose(0, 1) for x in arrays]
        expected, rows = module(*arrays, attn_mask=hidden.flatten(0, 1), average_attn_weights=False)
        found, weights = layer(*arrays, mask=~hidden, return_weights=True)
        close(found, expected)
        close(weights, rows)
        same = as_numpy(layer)(*(x.numpy() for x in arrays), mask=~hidden.numpy())
        close(same, expected)


def test_self_attention_without_a_batch() -> None:
    module = torch_module()
    layer = MultiHeadAttention.from_torch(module)
    with torch.no_grad():
        x = torch.randn(9, EMBED, generator=torch.Generator().manual_seed(2))
        ahead = torch.ones(9, 9, dtype=torch.bool).triu(1)
        expected, rows = module(x, x, x, attn_mask=ahead, average_attn_weights=False)
        found, weights = layer(x, causal="top_left", return_weights=True)
        assert found.shape == (9, EMBED)
        close(found, expected)
        close(weights, rows)
        memory = torch.randn(5, EMBED, generator=torch.Generator().manual_seed(3))
        close(layer(x, memory), module(x, memory, memory, need_weights=False)[0])


def test_parameters_are_shared() -> None:
    module = torch_module(batch_first=True)
    layer = MultiHeadAttention.from_torch(module)
    x = torch.ones(1, 2, EMBED)
    with torch.no_grad():
        before = layer(x)
        module.in_proj_weight.mul_(0.5)
        module.out_proj.bias.add_(1.0)
        after = layer(x)
        assert (before - after).abs().max() > 0.5
        close(after, module(x, x, x, need_weights=False)[0])


def grouped(dtype: str, kv_heads: int) -> tuple[MultiHeadAttention, dict[str, Array]]:
    """Eight heads of 8, values of 12, every width another; and its arrays by name."""
    rng = np.random.default_rng(kv_heads)
    shapes = {"query": (64, 20), "key": (8 * kv_heads, 24), "value": (12 * kv_heads, 28),
              "output": (36, 96)}  # fmt: skip
    arrays = {f"{n}_weight": drawn(rng, *s, dtype=dtype) / s[1] ** 0.5 for n, s in shapes.items()}
    arrays |= {f"{n}_bias": drawn(rng, s[0], dtype=dtype) for n, s in shapes.items()}
    arrays = {n: x.astype(drawn(rng, 0, dtype=dtype).dtype) for n, x in arrays.items()}
    return MultiHeadAttention(**arrays, num_heads=8), arrays


def by_equations(x: list[Array], arrays: dict[str, Array], kv_heads: int, **options: Any) -> Array:
    w = {n: a.astype(np.float64) for n, a in arrays.items()}
    split = []
    for name, array, heads in zip(
        ("query", "key", "value"), x, (8, kv_heads, kv_heads), strict=True
    ):
        rows = array.astype(np.float64) @ w[f"{name}_weight"].T + w[f"{name}_bias"]
        split.append(rows.reshape(*rows.shape[:2], heads, -1).swapaxes(1, 2))
    out = reference.attention(*split, **options).swapaxes(1, 2)
    joined = out.reshape(*out.shape[:2], -1)
    result: Array = joined @ w["output_weight"].T + w["output_bias"]
    return result


@pytest.mark.parametrize("kv_heads", [1, 2, 8])
def test_grouped_heads_by_the_equations(kv_heads: int) -> None:
    layer, arrays = grouped("float32", kv_heads)
    assert (layer.kv_heads, layer.head_dim, layer.value_dim) == (kv_heads, 8, 12)
    rng = np.random.default_rng(9)
    x = [drawn(rng, 2, n, d) for n, d in ((6, 20), (9, 24), (9, 28))]
    options = {"causal": "bottom_right", "window": (5, 0), "kv_lengths": [9, 4], "softcap": 2.0}
    close(layer(*x, **options), by_equations(x, arrays, kv_heads, **options))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision(dtype: str) -> None:
    layer, arrays = grouped(dtype, 2)
    rng = np.random.default_rng(10)
    x = [drawn(rng, 2, n, d, dtype=dtype) for n, d in ((6, 20), (9, 24), (9, 28))]
    found = layer(*x)
    assert str(found.dtype) == dtype
    error = np.abs(found.astype(np.float64) - by_equations(x, arrays, 2)).max()
    assert error < {"float16": 0.005, "bfloat16": 0.04}[dtype]
    tensors = {
        n: torch.from_numpy(a.astype("f4")).to(getattr(torch, dtype)) for n, a in arrays.items()
    }
    again = MultiHeadAttention(**tensors, num_heads=8)(
        *(torch.from_numpy(a.astype("f4")).to(getattr(torch, dtype)) for a in x)
    )
    error = np.abs(again.double().numpy() - by_equations(x, arrays, 2)).max()
    assert error < {"float16": 0.005, "bfloat16": 0.04}[dtype]


def test_weights_that_do_not_fit() -> None:
    _, good = grouped("float32", 2)
    changes: list[tuple[type[Exception], str, dict[str, Any]]] = [
        (InvalidTypeError, "num_heads: expected an int", {"num_heads": 8.0}),
        (InvalidValueError, "query_weight: rows: expected a multiple of num_heads=7", {"num_heads": 7}),
        (InvalidValueError, "query_weight: rows: .*=0", {"num_heads": 0}),
        (InvalidValueError, "key_weight: rows: expected a multiple of head_dim=8",
         {"key_weight": good["key_weight"][:9], "key_bias": None}),
        (InvalidValueError, "num_heads: expected a multiple of kv_heads=3",
         {"key_weight": np.ones((24, 24), "f4"), "key_bias": None}),
        (InvalidValueError, "value_weight: rows: expected a multiple of kv_heads=2",
         {"value_weight": good["value_weight"][:23], "value_bias": None}),
        (InvalidValueError, "output_weight: expected 96 columns",
         {"output_weight": good["output_weight"][:, 1:]}),
        (InvalidValueError, r"key_bias: expected shape \(16,\)", {"key_bias": good["key_bias"][1:]}),
        (InvalidValueError, "value_weight: expected .out features", {"value_weight": good["value_bias"]}),
        (InvalidTypeError, "expected one dtype", {"key_bias": good["key_bias"].astype("f2")}),
        (InvalidTypeError, "expected one dtype, .* got .'float64'.",
         {n: a.astype("f8") for n, a in good.items()}),
        (InvalidTypeError, "key_weight: expected NumPy arrays", {"key_weight": torch.ones(16, 24)}),
        (InvalidTypeError, "expected a NumPy array", {"query_weight": [[1.0]]}),
    ]  # fmt: skip
    for error, words, changed in changes:
        given = {"num_heads": 8, **good, **changed}
        refuses(error, words, lambda g=given: MultiHeadAttention(**g))


def test_inputs_that_do_not_fit() -> None:
    layer, _ = grouped("float32", 2)
    q, k, v = (np.ones((2, 5, d), np.float32) for d in (20, 24, 28))
    refuses(InvalidValueError, "query: expected 3 axes.* of 20", lambda: layer(k, k, v))
    refuses(InvalidValueError, "key: expected .* the last of 24", lambda: layer(q))
    refuses(InvalidValueError, "as many axes each", lambda: layer(q, k[0], v[0]))
    refuses(InvalidValueError, "query: expected 3 axes", lambda: layer(q[None], k, v))
    refuses(InvalidTypeError, "key: expected float32 like", lambda: layer(q, k.astype("f2"), v))
    refuses(InvalidTypeError, "query: expected NumPy", lambda: layer(torch.ones(2, 5, 20), k, v))
    refuses(InvalidTypeError, "options: .'layout'.", lambda: layer(q, k, v, layout="bhsd"))
    refuses(InvalidValueError, "mask", lambda: layer(q, k, v, mask=np.ones((3, 5), bool)))


def test_modules_that_compute_something_else() -> None:
    for options in ({"add_bias_kv": True}, {"add_zero_attn": True}):
        refuses(
            UnsupportedError, "without add_bias_kv",
            lambda o=options: MultiHeadAttention.from_torch(torch_module(**o)),
        )  # fmt: skip
    training = torch_module(dropout=0.1).train()
    refuses(UnsupportedError, "call .eval", lambda: MultiHeadAttention.from_torch(training))
    assert MultiHeadAttention.from_torch(training.eval()).num_heads == HEADS
    refuses(
        InvalidTypeError, "got Linear", lambda: MultiHeadAttention.from_torch(torch.nn.Linear(2, 2))
    )
