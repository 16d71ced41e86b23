"""Small models of transformers with random weights, one of each kind that attends in its own way."""

from __future__ import annotations

from typing import Any

import torch
from transformers import (
    BertConfig,
    BertModel,
    Gemma2Config,
    Gemma2ForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    GptOssConfig,
    GptOssForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    ModernBertConfig,
    ModernBertModel,
    T5Config,
    T5ForConditionalGeneration,
    ViTConfig,
    ViTModel,
    WhisperConfig,
    WhisperForConditionalGeneration,
)

VOCABULARY = 97
WINDOW = 7

_SIZES = {
    "vocab_size": VOCABULARY, "hidden_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "intermediate_size": 64, "max_position_embeddings": 256,
}  # fmt: skip
_DECODER = {
    **_SIZES, "num_key_value_heads": 2, "head_dim": 16, "bos_token_id": 1, "eos_token_id": None,
    "pad_token_id": 0,
}  # fmt: skip
_TWO = ["sliding_attention", "full_attention"]

_MODELS: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    "bert": (BertModel, BertConfig, _SIZES),
    "modernbert": (
        ModernBertModel, ModernBertConfig,
        {**_SIZES, "local_attention": 2 * WINDOW, "global_attn_every_n_layers": 2, "pad_token_id": 0,
         "bos_token_id": 1, "eos_token_id": 2, "cls_token_id": 1, "sep_token_id": 2},
    ),
    "vit": (ViTModel, ViTConfig, {**_SIZES, "image_size": 32, "patch_size": 8}),
    "gpt2": (
        GPT2LMHeadModel, GPT2Config,
        {"vocab_size": VOCABULARY, "n_embd": 48, "n_layer": 2, "n_head": 4, "n_positions": 256,
         "bos_token_id": 1, "eos_token_id": None, "pad_token_id": 0},
    ),
    "llama": (LlamaForCausalLM, LlamaConfig, _DECODER),
    "mistral": (MistralForCausalLM, MistralConfig, {**_DECODER, "sliding_window": WINDOW}),
    "gemma2": (
        Gemma2ForCausalLM, Gemma2Config,
        {**_DECODER, "sliding_window": WINDOW, "layer_types": _TWO, "query_pre_attn_scalar": 11,
         "attn_logit_softcapping": 0.5},
    ),
    "gpt_oss": (
        GptOssForCausalLM, GptOssConfig,
        {**_DECODER, "sliding_window": WINDOW, "layer_types": _TWO, "num_local_experts": 2,
         "num_experts_per_tok": 1},
    ),
    "whisper": (
        WhisperForConditionalGeneration, WhisperConfig,
        {"vocab_size": VOCABULARY, "d_model": 48, "encoder_layers": 1, "decoder_layers": 2,
         "encoder_attention_heads": 4, "decoder_attention_heads": 4, "encoder_ffn_dim": 64,
         "decoder_ffn_dim": 64, "num_mel_bins": 8, "max_source_positions": 30,
         "max_target_positions": 64, "decoder_start_token_id": 1, "bos_token_id": 1,
         "eos_token_id": 2, "pad_token_id": 0, "suppress_tokens": [2],
         "begin_suppress_tokens": None},
    ),
    "t5": (
        T5ForConditionalGeneration, T5Config,
        {"vocab_size": VOCABULARY, "d_model": 48, "d_kv": 12, "num_heads": 4, "num_layers": 2,
         "d_ff": 64, "decoder_start_token_id": 0, "eos_token_id": None, "pad_token_id": 0},
    ),
}  # fmt: skip
KINDS = tuple(_MODELS)


def model(kind: str, dtype: torch.dtype = torch.float32) -> Any:
    """Always the same weights, large enough that attention looks at some keys more than at others."""
    make, configure, fields = _MODELS[kind]
    torch.manual_seed(0)
    made = make(configure(**fields, attn_implementation="eager")).eval()
    with torch.no_grad():
        for name, weight in made.named_parameters():
            if any(part in name for part in ("q_proj", "query", "k_proj", "key", "Wqkv", "c_attn")):
                weight.mul_(8.0)
            elif "sinks" in name:
                weight.normal_()
    return made.to(dtype)
