"""transformers' masks, kept as words where they can be: what this attention serves without a tensor."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from transformers.masking_utils import causal_mask_function, sdpa_mask
from transformers.utils.import_utils import is_tracing


@dataclass(frozen=True, slots=True)
class Band:
    """Which keys a query sees, the last query standing at the last key: those of a window (left,
    right) about its own, and with ``causal`` none behind it. It takes the place of a mask's tensor."""

    causal: bool
    window: tuple[int, int]


def attention_mask(
    batch_size: int,
    q_length: int,
    kv_length: int,
    q_offset: int | torch.Tensor = 0,
    kv_offset: int = 0,
    mask_function: Callable[..., Any] = causal_mask_function,
    attention_mask: torch.Tensor | None = None,
    local_size: int | None = None,
    allow_is_causal_skip: bool = True,
    allow_is_bidirectional_skip: bool = False,
    config: Any = None,
    **options: Any,
) -> torch.Tensor | Band | None:
    """The mask of a whole forward pass, as transformers asks for it (see its ``sdpa_mask``).

    None where nothing is hidden but by causality, which the attention module knows of; a Band where a
    sliding window hides keys; otherwise a bool tensor (batch, 1, queries, keys), True = attend.
    """
    aligned = _last_at_last(q_length, kv_length, q_offset, kv_offset)
    is_plain = (allow_is_causal_skip and aligned) or (
        allow_is_bidirectional_skip and (aligned or local_size is None)
    )
    if is_plain and _nothing_padded(attention_mask, kv_length, kv_offset):
        # A causal window of w keys ends with the query's own; one to both sides has it between.
        if local_size is None or kv_length <= local_size + allow_is_bidirectional_skip:
            return None
        if _is_sliding(config, local_size) and allow_is_causal_skip:
            return Band(True, (local_size - 1, -1))
        if _is_sliding(config, local_size):
            return Band(False, (local_size, local_size))
    made: torch.Tensor = sdpa_mask(
        batch_size, q_length, kv_length, q_offset, kv_offset, mask_function, attention_mask,
        local_size, allow_is_causal_skip=False, allow_is_bidirectional_skip=False, config=config,
        **options,
    )  # fmt: skip
    return made


def _last_at_last(
    q_length: int, kv_length: int, q_offset: int | torch.Tensor, kv_offset: int
) -> bool:
    """Whether the last query stands at the last key; not known of a static cache being compiled."""
    if isinstance(q_offset, torch.Tensor):
        if is_tracing(q_offset):
            return False
        q_offset = int(q_offset)
    return q_offset + q_length == kv_offset + kv_length


def _nothing_padded(mask: torch.Tensor | None, kv_length: int, kv_offset: int) -> bool:
    if mask is None:
        return True
    if is_tracing(mask) or mask.shape[-1] < kv_offset + kv_length:  # numbers not there, or padding
        return False
    return bool(mask[:, kv_offset : kv_offset + kv_length].all())


def _is_sliding(config: Any, local_size: int) -> bool:
    """Whether that size is a sliding window's, and not that of chunks."""
    if getattr(config, "attention_chunk_size", None) is not None:
        return False
    return bool(getattr(config, "sliding_window", None) == local_size)
