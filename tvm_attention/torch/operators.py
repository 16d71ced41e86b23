"""The operators of torch.ops.tvm_attention: ``attention`` and ``scaled_dot_product_attention``.

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

_torch: Any = torch  # of which these parts have no types
_library = _torch.library
_LIBRARY = _library.Library("tvm_attention", "DEF")
DEVICES = ("CPU", "CUDA")  # by their names in keys of torch's dispatcher
_SCHEMAS = {
    "attention": (
        # All by place, the most used first: an option by name costs a microsecond on its way here.
        "(Tensor query, Tensor key, Tensor value, Tensor? mask=None, str? causal=None, "
        "float? scale=None, int[2]? window=None, float? softcap=None, Tensor? sinks=None, "
        "Tensor? alibi_slopes=None, Tensor? kv_lengths=None) -> Tensor"
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
    mask: torch.Tensor | None = None,
    causal: str | None = None,
    scale: float | None = None,
    window: Sequence[int] | None = None,
    softcap: float | None = None,
    sinks: torch.Tensor | None = None,
    alibi_slopes: torch.Tensor | None = None,
    kv_lengths: torch.Tensor | None = None,
) -> Any:
    sides = None if window is None else (window[0], window[1])  # torch hands on a list
    result = functional.attention_again(
        query, key, value, mask, causal, sides, softcap, scale, alibi_slopes, sinks, kv_lengths
    )
    if result is not None:
        return result
    return functional.attention(
        query, key, value, mask=mask, causal=causal, scale=scale, window=sides, softcap=softcap,
        sinks=sinks, alibi_slopes=alibi_slopes, kv_lengths=kv_lengths,
    )  # fmt: skip


def _attention_meta(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None = None,
    *_: Any,
    **__: Any,
) -> Any:
    _check_meta(query, key, value, mask)
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
        own = 1 if enable_gqa else 0  # heads are no axis to broadcast then
        shapes = [axes[: len(axes) - own] for axes in leading]
        common = _torch.broadcast_shapes(*shapes)
        query = query.expand(*common, *query.shape[-2 - own :])
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
    if any(not 2 <= x.ndim <= 4 for x in given[:3]):  # of more, the result's strides are not told
        raise InvalidValueError(
            f"query, key and value: expected 2 to 4 axes (batch, heads, rows, dim), got shapes "
            f"{', '.join(str(tuple(x.shape)) for x in given[:3])}"
        )


def _under_autocast(operator: Any, device: str) -> Callable[..., Any]:
    """The operator in autocast's dtype, as torch's own attention is. Small arrays stay as they are."""

    def cast(*arguments: Any, **options: Any) -> Any:
        dtype = torch.get_autocast_dtype(device)

        def to(x: Any) -> Any:
            eligible = isinstance(x, torch.Tensor) and x.is_floating_point() and x.ndim >= 2
            return x.to(dtype) if eligible and x.dtype != torch.float64 else x

        tensors = [to(x) for x in arguments]
        with torch.autocast(device, enabled=False):
            return operator(*tensors, **{k: to(x) for k, x in options.items()})

    return cast


def _define(name: str, compute: Callable[..., Any], meta: Callable[..., Any]) -> Any:
    _LIBRARY.define(name + _SCHEMAS[name], tags=(torch.Tag.pt2_compliant_tag,))
    _library.register_fake(f"tvm_attention::{name}", meta, lib=_LIBRARY)
    operator = getattr(torch.ops.tvm_attention, name).default
    for device in DEVICES:
        _LIBRARY.impl(name, compute, device)
        # Calls that would need a gradient raise; all others have nothing to do there.
        _LIBRARY.impl(name, _library.fallthrough_kernel, f"Autograd{device}")
        _LIBRARY.impl(name, _under_autocast(operator, device.lower()), f"Autocast{device}")
    return operator


attention = _define("attention", _attention, _attention_meta)
scaled_dot_product_attention = _define(
    "scaled_dot_product_attention",
    functional.scaled_dot_product_attention,
    _scaled_dot_product_attention_meta,
)
