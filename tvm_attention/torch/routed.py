"""What stands in for torch's attention while it is routed: ours, or torch's where we do not serve a call."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from tvm_attention.errors import AttentionError
from tvm_attention.functional import scaled_dot_product_attention as ours
from tvm_attention.torch import fallback, operators

_NEED_WEIGHTS = 15  # which argument of multi_head_attention_forward that is
_PLAIN = (torch.Tensor, torch.nn.Parameter)
# Not torch.nn.functional's: that one may already be another library's.
torch_function = torch._C._nn.scaled_dot_product_attention
torch_operator = torch.ops.aten.scaled_dot_product_attention.default


def eager(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Any:
    """What the dispatcher calls for tensors of a device that is routed: ours, or torch's with its
    gradients."""
    reason = _eager_refusal(query, key, value, attn_mask, dropout_p)
    if reason is None:
        try:
            return ours(query, key, value, attn_mask, 0.0, is_causal, scale, enable_gqa)
        except AttentionError as error:  # before anything was computed
            reason = str(error)
    result = torch_operator.decompose(
        query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
    )
    fallback.say_once(reason)  # only now: what torch refuses as well is an error, and no fallback
    return result


def _eager_refusal(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None,
    dropout: float,
) -> str | None:
    """What ``ours`` would not find out itself, or not as soon: a training step should lose no time."""
    if fallback.needs_gradient(query, key, value, mask):
        return fallback.GRADIENT
    if dropout > 0.0:
        return fallback.DROPOUT
    if any(type(x) not in _PLAIN for x in (query, key, value)):
        return fallback.no_plain_tensors()
    if torch._C._len_torch_dispatch_stack():
        return "a TorchDispatchMode is active, which would not see torch's own operators"
    return None


@functools.wraps(torch_function)
def named(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Any:
    """What torch.nn.functional calls: our operator in a graph, otherwise the dispatcher."""
    function = torch_function
    if not torch.compiler.is_compiling():
        # Of another device, whose entry may be torch's.
        if not getattr(query, "is_cpu", True) and query.device.type not in fallback.served:
            fallback.say_once(fallback.elsewhere(query.device.type))
    elif type(query) in _PLAIN or torch.compiler.is_exporting():
        # Not for a compiler's stand-ins: its later stages are cached on disk by what dynamo saw.
        reason = fallback.traced_refusal(query, key, value, attn_mask, dropout_p)
        if reason is None:
            function = operators.scaled_dot_product_attention
        else:
            fallback.say_at_compilation(reason)
    return function(
        query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
    )


def saying_of_weights(multi_head: Callable[..., Any]) -> Callable[..., Any]:
    """torch.nn.functional.multi_head_attention_forward, which calls no attention function where the
    weights are asked for: that is said."""

    @functools.wraps(multi_head)
    def multi_head_attention_forward(*arguments: Any, **options: Any) -> Any:
        result = multi_head(*arguments, **options)
        by_place = arguments[_NEED_WEIGHTS:]
        if by_place[0] if by_place else options.get("need_weights", True):
            if torch.compiler.is_compiling():
                fallback.say_at_compilation(fallback.WEIGHTS)
            else:
                fallback.say_once(fallback.WEIGHTS)
        return result

    return multi_head_attention_forward
