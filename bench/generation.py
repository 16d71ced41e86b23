"""The phases of a model that generates: the prefill, one decoding step after it, and generate(); and of one
that does not."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

Call = Callable[[], Any]
MEL_BINS, FRAMES = 80, 3000  # of half a minute of sound


@dataclass(frozen=True, slots=True)
class Text:
    """A prompt of ``ids`` (batch, tokens), after which a model goes on."""

    ids: torch.Tensor

    @property
    def prefill(self) -> Mapping[str, Any]:
        return {"input_ids": self.ids, "logits_to_keep": 1}

    @property
    def generate(self) -> Mapping[str, Any]:
        return {"input_ids": self.ids, "attention_mask": torch.ones_like(self.ids)}

    def after(self, prefilled: Any) -> Mapping[str, Any]:
        """What one more token is computed from."""
        return {"input_ids": self.ids[:, :1]}


@dataclass(frozen=True, slots=True)
class Speech:
    """Sound of which a model that hears makes text: ``features`` (batch, MEL_BINS, FRAMES), and the
    first ``ids`` (batch, tokens) of the text."""

    features: torch.Tensor
    ids: torch.Tensor

    @property
    def prefill(self) -> Mapping[str, Any]:
        return {"input_features": self.features, "decoder_input_ids": self.ids}

    @property
    def generate(self) -> Mapping[str, Any]:
        return self.prefill

    def after(self, prefilled: Any) -> Mapping[str, Any]:
        heard = prefilled.encoder_last_hidden_state
        return {"encoder_outputs": (heard,), "decoder_input_ids": self.ids[:, :1]}


Prompt = Text | Speech


def prefill(model: Any, prompt: Prompt, tokens: int) -> Call:
    """Logits of the last place."""
    return lambda: model(**prompt.prefill).logits[:, -1]


def step(model: Any, prompt: Prompt, tokens: int) -> Call:
    """Logits of a token after the prompt. The same place each time, but where a layer's cache lets go of
    keys behind its window: these go on, place by place."""
    prefilled = model(**prompt.prefill, use_cache=True)
    cache, token = prefilled.cache, prompt.after(prefilled)
    stays = not any(cache.is_sliding)

    def one() -> Any:
        logits = model(**token, cache=cache, use_cache=True).logits
        if stays:
            cache.crop(-1)  # the token that was added goes again
        return logits

    return one


def generate(model: Any, prompt: Prompt, tokens: int) -> Call:
    """The ids of the prompt and of ``tokens`` more."""
    options = {"do_sample": False, "max_new_tokens": tokens, "pad_token_id": 0}
    return lambda: model.generate(**prompt.generate, **options)


def encode(model: Any, inputs: Mapping[str, Any], tokens: int) -> Call:
    """What a model that generates nothing makes of its inputs."""
    return lambda: model(**inputs).last_hidden_state


PHASES: Mapping[str, Callable[[Any, Any, int], Call]] = {
    "prefill": prefill,
    "step": step,
    "generate": generate,
}
ENCODE: Mapping[str, Callable[[Any, Any, int], Call]] = {"encode": encode}
