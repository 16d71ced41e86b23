"""attn_implementation="tvm_attention" of transformers: the function that its attention layers call."""

from __future__ import annotations

import math
from typing import Any

import torch

from tvm_attention import functional
from tvm_attention.torch import operators
from tvm_attention.torch.masks import Band


def attention_forward(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | Band | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    is_causal: bool | None = None,
    softcap: float | None = None,
    s_aux: torch.Tensor | None = None,
    position_bias: torch.Tensor | None = None,
    output_attentions: bool = False,
    **_: Any,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """query (B, Hq, L, E), key (B, Hkv, S, E), value (B, Hkv, S, Ev) -> (B, L, Hq, Ev), and the weights
    (B, Hq, L, S) if asked for.

    ``softcap``, ``s_aux`` (sinks) and ``position_bias`` are what models pass under these names. Without a
    mask, ``is_causal`` (the module's, if not given) lets the last query see the last key. A window comes
    as a :class:`Band` in the mask's place. Raises UnsupportedError for dropout and gradients.
    """
    functional.check_options(dropout, False, True)
    window = None
    if isinstance(attention_mask, Band):
        causal, window, mask = attention_mask.causal, attention_mask.window, None
    else:
        if is_causal is None:
            is_causal = getattr(module, "is_causal", True)
        causal, mask = attention_mask is None and bool(is_causal), attention_mask
    mask = _with_bias(mask, position_bias, query.dtype)
    # One query stands at the last key and sees all: the kernel for decoding need not ask.
    kind = "bottom_right" if causal and query.shape[2] > 1 else None
    if output_attentions:
        result, weights = functional.attention(
            query, key, value, mask=mask, causal=kind, scale=scaling, window=window,
            softcap=softcap, sinks=s_aux, return_weights=True,
        )  # fmt: skip
    else:
        weights = None
        result = operators.attention(query, key, value, mask, kind, scaling, window, softcap, s_aux)
    return result.transpose(1, 2).contiguous(), weights  # no copy where queries lay like that


def _with_bias(
    mask: torch.Tensor | None, bias: torch.Tensor | None, dtype: torch.dtype
) -> torch.Tensor | None:
    """What is added to the scores, or a bool mask, in a dtype that is served beside the query's."""
    if bias is not None:
        if mask is None:
            mask = bias
        elif mask.dtype == torch.bool:
            mask = torch.where(mask, bias, -math.inf)
        else:
            mask = mask + bias
    if mask is not None and mask.dtype not in (torch.bool, torch.float32):
        mask = mask.to(dtype)
    return mask
