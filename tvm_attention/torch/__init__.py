"""Where torch's users already are: operators for torch.compile and torch.export, torch's own attention
routed to ours, and an attention implementation for transformers."""

from tvm_attention.errors import FallbackWarning
from tvm_attention.torch.operators import attention, scaled_dot_product_attention
from tvm_attention.torch.registration import register
from tvm_attention.torch.routing import disable, enable, enabled, is_enabled

__all__ = [
    "FallbackWarning",
    "attention",
    "disable",
    "enable",
    "enabled",
    "is_enabled",
    "register",
    "scaled_dot_product_attention",
]
