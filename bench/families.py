"""Models of transformers with two layers of random weights: of each family that attends in its own way, its
heads, windows, softcap and sinks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import transformers

from bench.generation import FRAMES, MEL_BINS, Speech, Text
from bench.model_calls import EAGER, SDPA

VOCABULARY = 2048
PLACES = 1024  # those that GPT-2 has
WINDOW = 256
_TEXT = {
    "vocab_size": VOCABULARY, "num_hidden_layers": 2, "max_position_embeddings": 2 * PLACES,
    "pad_token_id": 0, "bos_token_id": None, "eos_token_id": None,
}  # fmt: skip
_WINDOWS = {"sliding_window": WINDOW, "layer_types": ["sliding_attention", "full_attention"]}


@dataclass(frozen=True, slots=True)
class Family:
    """``made`` is the class of its model, ``configured`` that of its configuration, and ``shape`` what
    is set of that."""

    made: Any
    configured: Any
    shape: Mapping[str, Any]
    prompt: Callable[[int], Any]
    generates: bool = True

    def model(self) -> Any:
        """With the attention that ours is beside: torch's, or transformers' own where the family has what
        torch's function lacks."""
        config = self.configured(**self.shape)
        config._attn_implementation = SDPA if self.made._supports_sdpa else EAGER
        return self.made(config).eval()


def _text(tokens: int) -> Text:
    return Text(torch.randint(1, VOCABULARY, (1, tokens)))


def _speech(tokens: int) -> Speech:
    """Half a minute of sound, which is what the encoder always takes; the text is at its beginning."""
    return Speech(torch.randn(1, MEL_BINS, FRAMES), torch.ones(1, 1, dtype=torch.long))


def _sentence(tokens: int) -> Mapping[str, Any]:
    return {"input_ids": torch.randint(1, VOCABULARY, (1, min(tokens, 512)))}


def _image(tokens: int) -> Mapping[str, Any]:
    return {"pixel_values": torch.randn(1, 3, 224, 224)}


_ENCODER = {"hidden_size": 768, "num_attention_heads": 12, "intermediate_size": 3072}

FAMILIES: dict[str, Family] = {
    "bert": Family(
        transformers.BertModel, transformers.BertConfig,
        {"vocab_size": VOCABULARY, "num_hidden_layers": 2, **_ENCODER}, _sentence, generates=False,
    ),
    "vit": Family(
        transformers.ViTModel, transformers.ViTConfig, {"num_hidden_layers": 2, **_ENCODER}, _image,
        generates=False,
    ),
    "gpt2": Family(
        transformers.GPT2LMHeadModel, transformers.GPT2Config,
        {"vocab_size": VOCABULARY, "n_embd": 768, "n_layer": 2, "n_head": 12, "n_positions": PLACES,
         "bos_token_id": None, "eos_token_id": None, "pad_token_id": 0}, _text,
    ),
    "llama": Family(
        transformers.LlamaForCausalLM, transformers.LlamaConfig,
        {**_TEXT, "hidden_size": 1024, "num_attention_heads": 16, "num_key_value_heads": 4,
         "head_dim": 64, "intermediate_size": 2816}, _text,
    ),
    "mistral": Family(
        transformers.MistralForCausalLM, transformers.MistralConfig,
        {**_TEXT, "hidden_size": 1024, "num_attention_heads": 8, "num_key_value_heads": 2,
         "head_dim": 128, "intermediate_size": 3584, "sliding_window": WINDOW}, _text,
    ),
    "gemma2": Family(
        transformers.Gemma2ForCausalLM, transformers.Gemma2Config,
        {**_TEXT, **_WINDOWS, "hidden_size": 1024, "num_attention_heads": 4, "head_dim": 256,
         "num_key_value_heads": 2, "intermediate_size": 4096}, _text,
    ),
    "gpt_oss": Family(
        transformers.GptOssForCausalLM, transformers.GptOssConfig,
        {**_TEXT, **_WINDOWS, "hidden_size": 512, "num_attention_heads": 16, "head_dim": 64,
         "num_key_value_heads": 2, "intermediate_size": 512, "num_local_experts": 4,
         "num_experts_per_tok": 2, "max_position_embeddings": 131072}, _text,
    ),
    "whisper": Family(
        transformers.WhisperForConditionalGeneration, transformers.WhisperConfig,
        {"vocab_size": VOCABULARY, "d_model": 384, "encoder_layers": 2, "decoder_layers": 2,
         "encoder_attention_heads": 6, "decoder_attention_heads": 6, "encoder_ffn_dim": 1536,
         "decoder_ffn_dim": 1536, "num_mel_bins": MEL_BINS, "decoder_start_token_id": 1,
         "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0, "suppress_tokens": [2],
         "begin_suppress_tokens": None}, _speech,
    ),
}  # fmt: skip
