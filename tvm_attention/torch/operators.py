"""The operators that torch knows: ``attention`` and ``scaled_dot_product_attention`` of torch.ops.tvm_attention.

They are what torch.compile and torch.export keep of a call. Defined by schema and not by
``torch.library.custom_op``, whose Python wrapper alone costs fifteen microseconds a call.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from tvm_attention import functional
from tvm_attention.arrays import TorchTensors
from tvm_attention.errors import InvalidTypeError, InvalidValueError, UnsupportedError
from tvm_attention.workload import DTYPES

_LIBRARY = torch.library.Library("tvm_attention", "DEF")
_SCHEMAS = {
    "attention": (
        "(Tensor query, Tensor key, Tensor value, *, Tensor? mask=None, str? causal=None, "
        "int[2]? window=None, float? softcap=None, Tensor? alibi_slopes=None, Tensor? sinks=None, "
        "Tensor? kv_lengths=None, float? scale=None) -> Tensor"
    ),
    "scaled_dot_product_attention": (
        "(Tensor query, Tensor key, Tensor value, Tensor? attn_mask=None, float dropout_p=0.0, "
        "bool is_causal=False, *, float? scale=None, bool enable_gqa=False) -> Tensor"
    ),
}


def _attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    *,
    window: Sequence[int] | None = None,
    **options: Any,
) -> Any:
    if window is not None:  # a list, as torch hands it on
        window = tuple(window)
    return functional.attention(query, key, value, window=window, **options)


def _attention_meta(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, **options: Any
) -> Any:
    _check_meta(query, key, value, options.get("mask"))
    return TorchTensors().empty((*query.shape[:-1], value.shape[-1]), query)


def _scaled_dot_product_attention_meta(
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
    _check_meta(query, key, value, attn_mask)
    leading = [x.shape[:-2] for x in (query, key, value)]
    if not leading[0] == leading[1] == leading[2]:
        if enable_gqa:  # heads are no axis to broadcast
            batch = torch.broadcast_shapes(*(axes[:-1] for axes in leading))
            query = query.expand(*batch, *query.shape[-3:])
        else:
            batch = torch.broadcast_shapes(*leading)
            query = query.expand(*batch, *query.shape[-2:])
    return TorchTensors().empty((*query.shape[:-1], value.shape[-1]), query)


def _check_meta(*tensors: torch.Tensor | None) -> None:
    """What is known of a call before it has numbers: raises as the call itself would."""
    given = [x for x in tensors if x is not None]
    if torch.is_grad_enabled() and any(x.requires_grad for x in given):
        raise UnsupportedError(
            "query, key, value or mask requires grad, and only the forward pass is computed; call "
            "under torch.no_grad() or detach it"
        )
    dtypes = {str(x.dtype).removeprefix("torch.") for x in given[:3]}
    if len(dtypes) > 1 or not dtypes <= set(DTYPES):
        raise InvalidTypeError(
            f"dtype: expected {' or '.join(DTYPES)} of query, key and value alike, got "
            f"{', '.join(sorted(dtypes))}; convert the inputs"
        )
    if any(x.ndim < 2 for x in given[:3]):
        raise InvalidValueError(
            f"query, key and value: expected 2 to 4 axes (batch, heads, rows, dim), got shapes "
            f"{', '.join(str(tuple(x.shape)) for x in given[:3])}"
        )


def _under_autocast(operator: Any) -> Callable[..., Any]:
    """The operator in autocast's dtype, as torch's own attention is. Small arrays stay as they are."""

    def cast(*arguments: Any, **options: Any) -> Any:
        dtype = torch.get_autocast_dtype("cpu")

        def to(x: Any) -> Any:
            eligible = isinstance(x, torch.Tensor) and x.is_floating_point() and x.ndim >= 2
            return x.to(dtype) if eligible and x.dtype != torch.float64 else x

        tensors = [to(x) for x in arguments]
        with torch.autocast("cpu", enabled=False):
            return operator(*tensors, **{k: to(x) for k, x in options.items()})

    return cast


def _define(name: str, compute: Callable[..., Any], meta: Callable[..., Any]) -> Any:
    _LIBRARY.define(name + _SCHEMAS[name], tags=(torch.Tag.pt2_compliant_tag,))
    _LIBRARY.impl(name, compute, "CPU")
    # Calls that would need a gradient raise; all others have nothing to do there.
    _LIBRARY.impl(name, torch.library.fallthrough_kernel, "AutogradCPU")
    torch.library.register_fake(f"tvm_attention::{name}", meta, lib=_LIBRARY)
    operator = getattr(torch.ops.tvm_attention, name).default
    _LIBRARY.impl(name, _under_autocast(operator), "AutocastCPU")
    return operator


attention = _define("attention", _attention, _attention_meta)
scaled_dot_product_attention = _define(
    "scaled_dot_product_attention",
    functional.scaled_dot_product_attention,
    _scaled_dot_product_attention_meta,
)
