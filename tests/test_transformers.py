"""attn_implementation="tvm_attention" in transformers' own models, against their eager attention."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers", reason="the extra dev brings it")

from transformers.masking_utils import (  # noqa: E402
    bidirectional_mask_function,
    causal_mask_function,
    sdpa_mask,
    sliding_window_bidirectional_mask_function,
    sliding_window_causal_mask_function,
)
from transformers_models import KINDS, VOCABULARY, WINDOW, model  # noqa: E402

import tvm_attention.torch  # noqa: E402
from tvm_attention import UnsupportedError  # noqa: E402
from tvm_attention.torch import attention_interface, masks, operators, registration  # noqa: E402

OURS = "tvm_attention"
ENCODERS = ("bert", "modernbert", "vit")
BATCH, LENGTH, PADDED = 2, 3 * WINDOW, 4
GENERATING = tuple(kind for kind in KINDS if kind not in ENCODERS)
SEQUENCE_TO_SEQUENCE = ("whisper", "t5")
DECODERS = tuple(kind for kind in GENERATING if kind not in SEQUENCE_TO_SEQUENCE)


@pytest.fixture(autouse=True)
def _inference() -> Iterator[None]:
    tvm_attention.torch.register()
    with torch.no_grad():
        yield


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """The options of the calls that came to our operator."""
    came: list[dict[str, Any]] = []
    real = operators.attention

    def counted(*arrays: Any, **options: Any) -> Any:
        came.append(options)
        return real(*arrays, **options)

    monkeypatch.setattr(attention_interface.operators, "attention", counted)
    return came


def tokens(length: int = LENGTH) -> Any:
    torch.manual_seed(1)
    return torch.randint(3, VOCABULARY, (BATCH, length))


def padding(kind: str) -> Any:
    """Padded where such a model is: a decoder's batch on the left."""
    mask = torch.ones(BATCH, LENGTH, dtype=torch.long)
    hidden = slice(LENGTH - PADDED, None) if kind in (*ENCODERS, "t5") else slice(PADDED)
    mask[0, hidden] = 0
    return mask


def sounds() -> Any:
    torch.manual_seed(2)
    return torch.randn(BATCH, 8, 60)


def outputs(kind: str, net: Any, mask: Any = None) -> Any:
    """The last layer's, or logits, of every place that is not padding."""
    if kind == "vit":
        torch.manual_seed(2)
        return net(torch.randn(BATCH, 3, 32, 32, dtype=net.dtype)).last_hidden_state
    if kind == "whisper":
        return net(input_features=sounds().to(net.dtype), decoder_input_ids=tokens()).logits
    if kind == "t5":
        out = net(input_ids=tokens(), attention_mask=mask, decoder_input_ids=tokens(9))
        return out.logits
    out = net(input_ids=tokens(), attention_mask=mask)
    found = out.logits if hasattr(out, "logits") else out.last_hidden_state
    return found if mask is None else found[mask.bool()]


def by(implementation: str, net: Any) -> Any:
    net.set_attn_implementation(implementation)
    return net


@pytest.mark.parametrize("padded", [False, True], ids=["whole", "padded"])
@pytest.mark.parametrize("kind", KINDS)
def test_outputs_are_those_of_eager_attention(
    kind: str, padded: bool, calls: list[dict[str, Any]]
) -> None:
    net, mask = model(kind), padding(kind) if padded else None
    expected = outputs(kind, by("eager", net), mask)
    assert not calls
    found = outputs(kind, by(OURS, net), mask)
    assert len(calls) == {"whisper": 5, "t5": 6}.get(kind, 2)
    assert expected.std() > 0.1
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("kind", "option"),
    [
        ("gemma2", "softcap"), ("gpt_oss", "s_aux"), ("t5", "position_bias"), ("gemma2", "scaling"),
        ("mistral", "attention_mask"), ("modernbert", "attention_mask"),
        ("gemma2", "attention_mask"), ("gpt_oss", "attention_mask"),
    ],
)  # fmt: skip
def test_outputs_would_tell_of_an_option_that_is_lost(
    kind: str, option: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[Any] = []

    def losing(module: Any, query: Any, key: Any, value: Any, mask: Any, **options: Any) -> Any:
        given.append({**options, "attention_mask": mask}[option])
        if option == "attention_mask":
            mask = None
        else:
            options[option] = None
        return attention_interface.attention_forward(module, query, key, value, mask, **options)

    monkeypatch.setitem(transformers.AttentionInterface._global_mapping, OURS, losing)
    net = model(kind)
    expected = outputs(kind, by("eager", net))
    assert (outputs(kind, by(OURS, net)) - expected).abs().max() > 1e-4
    assert any(option is not None for option in given)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("kind", ["bert", "llama"])
def test_half_precision_is_as_near_as_eager_attention(kind: str, dtype: Any) -> None:
    exact = outputs(kind, by("eager", model(kind, dtype).float()), padding(kind))
    errors = [
        float((outputs(kind, by(name, model(kind, dtype)), padding(kind)) - exact).abs().max())
        for name in ("eager", OURS)
    ]
    eager, ours = errors
    assert ours <= 1.5 * eager + torch.finfo(dtype).eps * float(exact.abs().max())


GREEDY = {"do_sample": False, "max_new_tokens": 16, "no_repeat_ngram_size": 2}


def generated(kind: str, net: Any, padded: bool, **options: Any) -> Any:
    if kind == "whisper":
        return net.generate(input_features=sounds(), **GREEDY, **options)
    mask = padding(kind) if padded else torch.ones(BATCH, LENGTH, dtype=torch.long)
    return net.generate(tokens(), attention_mask=mask, **GREEDY, **options)


@pytest.mark.parametrize("padded", [False, True], ids=["whole", "padded"])
@pytest.mark.parametrize("kind", GENERATING)
def test_greedy_generation_gives_the_same_tokens(kind: str, padded: bool) -> None:
    net = model(kind)
    expected = generated(kind, by("eager", net), padded)
    assert len(expected[:, -16:].unique()) > 6
    assert torch.equal(generated(kind, by(OURS, net), padded), expected)


@pytest.mark.parametrize("kind", DECODERS)
def test_greedy_generation_with_a_static_cache(kind: str) -> None:
    options = {"cache_implementation": "static", "disable_compile": True}
    net = model(kind)
    expected = generated(kind, by("eager", net), True)
    assert torch.equal(generated(kind, by(OURS, net), True, **options), expected)


@pytest.mark.parametrize("kind", DECODERS)
def test_a_prompt_that_comes_in_parts(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The later parts see what is in the cache, and no mask's tensor is made for them."""
    monkeypatch.setattr(masks, "sdpa_mask", None)
    net = by(OURS, model(kind))
    cache = transformers.DynamicCache(config=net.config)
    parts = [
        net(input_ids=part, cache=cache, use_cache=True).logits
        for part in tokens().split([WINDOW + 2, 5, 1, LENGTH - WINDOW - 8], dim=1)
    ]
    expected = outputs(kind, by("eager", net))
    torch.testing.assert_close(torch.cat(parts, dim=1), expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("kind", [*ENCODERS, *GENERATING])
def test_no_mask_is_made_where_nothing_is_padded(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(masks, "sdpa_mask", None)
    net = by(OURS, model(kind))
    outputs(kind, net)
    if kind in GENERATING:
        generated(kind, net, padded=False)


@pytest.mark.parametrize("kind", ["bert", "llama", "mistral"])
def test_compiled_models_are_one_graph(kind: str, calls: list[dict[str, Any]]) -> None:
    torch._dynamo.reset()
    net = by(OURS, model(kind))
    compiled = torch.compile(net, fullgraph=True, backend="aot_eager")
    for mask in (None, padding(kind)):
        expected = outputs(kind, net, mask)
        torch.testing.assert_close(outputs(kind, compiled, mask), expected, rtol=0, atol=1e-5)


def test_attention_weights() -> None:
    net = model("bert")
    net.set_attn_implementation("eager")
    expected = net(tokens(), attention_mask=padding("bert"), output_attentions=True).attentions
    net.set_attn_implementation(OURS)
    found = net(tokens(), attention_mask=padding("bert"), output_attentions=True).attentions
    assert len(found) == len(expected) == 2
    for ours, eager in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, eager, rtol=0, atol=1e-6)


def test_what_is_not_computed_is_refused() -> None:
    net = by(OURS, model("gpt2"))
    with torch.enable_grad(), pytest.raises(UnsupportedError, match="requires grad"):
        net(tokens())
    with pytest.raises(UnsupportedError, match="dropout_p"):
        net.train()(tokens())


def seen(mask: Any, queries: int, keys: int) -> Any:
    """What a mask of ours says, as a tensor (queries, keys)."""
    if isinstance(mask, torch.Tensor):
        return mask[0, 0]
    offset = keys - queries
    i, j = torch.arange(queries)[:, None] + offset, torch.arange(keys)
    if mask is None:
        return j <= i
    left, right = mask.window
    inside = (j >= i - left) & ((j <= i + right) if right >= 0 else True)
    return inside & (j <= i) if mask.causal else inside


@pytest.mark.parametrize("offset", [0, 3, "tensor"])
@pytest.mark.parametrize("static", [False, True])
@pytest.mark.parametrize("queries", [1, 5, 11])
@pytest.mark.parametrize("window", [None, 4, 5, 10, 13])
def test_a_mask_says_what_transformers_own_says(
    offset: Any, static: bool, queries: int, window: int | None
) -> None:
    past = 3 if offset == "tensor" else offset
    keys = past + queries + (4 if static else 0)
    options = {
        "batch_size": 1, "q_length": queries, "kv_length": keys,
        "q_offset": torch.tensor(3) if offset == "tensor" else offset,
        "mask_function": sliding_window_causal_mask_function(window) if window
        else causal_mask_function,
        "local_size": window, "config": transformers.MistralConfig(sliding_window=window),
    }  # fmt: skip
    expected = sdpa_mask(**options, allow_is_causal_skip=False)
    found = masks.attention_mask(**options)
    assert torch.equal(seen(found, queries, keys), expected[0, 0])
    assert isinstance(found, torch.Tensor) == static
    assert torch.equal(masks.attention_mask(**options, allow_is_causal_skip=False), expected)
    hidden = torch.arange(keys)[None] != 0
    padded = masks.attention_mask(**options, attention_mask=hidden)
    assert torch.equal(padded[0, 0], expected[0, 0] & hidden)
    both = SimpleNamespace(attention_chunk_size=window, sliding_window=window)
    if window is not None:  # as long as a chunk, but which of the two is not said
        assert not isinstance(masks.attention_mask(**{**options, "config": both}), masks.Band)


@pytest.mark.parametrize("window", [None, 4, 5, 6])
@pytest.mark.parametrize("queries", [4, 5, 6])
def test_a_mask_to_both_sides(queries: int, window: int | None) -> None:
    options = {
        "batch_size": 1, "q_length": queries, "kv_length": 6, "q_offset": 6 - queries,
        "mask_function": sliding_window_bidirectional_mask_function(window) if window
        else bidirectional_mask_function,
        "local_size": window, "config": transformers.ModernBertConfig(local_attention=2 * (window or 9)),
        "allow_is_causal_skip": False,
    }  # fmt: skip
    expected = sdpa_mask(**options)
    found = masks.attention_mask(**options, allow_is_bidirectional_skip=True)
    assert found is None or isinstance(found, masks.Band)
    assert (found is None) == bool(expected.all())
    if found is not None:
        assert torch.equal(seen(found, queries, 6), expected[0, 0])


def test_a_transformers_that_does_not_do(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(transformers.masking_utils, "sdpa_mask", lambda cache_position: None)
        with pytest.raises(UnsupportedError, match="older"):
            registration.register()
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(UnsupportedError, match="pip install"):
        registration.register()
