"""Making ourselves known to transformers, which this library never needs otherwise."""

from __future__ import annotations

import inspect

from tvm_attention.errors import UnsupportedError

NAME = "tvm_attention"


def register() -> None:
    """Make ``attn_implementation="tvm_attention"`` known to transformers; twice is once.

    Raises UnsupportedError for a transformers that is not installed or too old.
    """
    try:
        from transformers import AttentionInterface
        from transformers.masking_utils import AttentionMaskInterface, sdpa_mask
    except ImportError as error:
        raise UnsupportedError(
            f"expected transformers 5, which cannot be imported: {error}; pip install 'transformers>=5'"
        ) from error
    if "q_length" not in inspect.signature(sdpa_mask).parameters:
        raise UnsupportedError(
            "expected transformers whose sdpa_mask has a q_length, got an older one; "
            "pip install --upgrade 'transformers>=5'"
        )
    from tvm_attention.torch.attention_interface import attention_forward
    from tvm_attention.torch.masks import attention_mask

    AttentionInterface.register(NAME, attention_forward)
    AttentionMaskInterface.register(NAME, attention_mask)
