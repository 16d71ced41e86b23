"""Attention as a function, with the signature of torch.nn.functional.scaled_dot_product_attention."""

from __future__ import annotations

from numbers import Real
from typing import Any

import numpy as np

from tvm_attention.arrays import kind_of
from tvm_attention.errors import InvalidTypeError, InvalidValueError, UnsupportedError
from tvm_attention.operands import check_scale, geometry, opened_inputs, workload_of
from tvm_attention.remembered import RememberedCalls
from tvm_attention.runtime import load

_remembered = RememberedCalls()


def forget_calls() -> None:
    """Drop remembered calls, so that new tuning records are seen."""
    _remembered.forget()


def scaled_dot_product_attention(
    query: Any,
    key: Any,
    value: Any,
    attn_mask: Any = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Any:
    """softmax(scale * query key^T) value, with the meaning of torch's function of this name.

    query (B, Hq, L, E), key (B, Hkv, S, E), value (B, Hkv, S, Ev), float32, or without the leading
    axes: (B, L, E) or (L, E). NumPy arrays, torch tensors on the cpu or anything with DLPack, all of one
    kind; the result is of that kind, (B, Hq, L, Ev). Any strides; no copy is made while the last axis is
    dense. ``is_causal`` lets query i see keys 0..i. ``scale`` defaults to 1 / sqrt(E). ``enable_gqa``
    allows Hq to be a multiple of Hkv.

    Raises InvalidValueError (a ValueError), InvalidTypeError (a TypeError) or UnsupportedError (a
    NotImplementedError) before anything is computed: attn_mask, dropout and other dtypes are not
    computed by this version.
    """
    if type(scale) is not float and scale is not None:
        scale = check_scale(scale, 1)
    plain = type(is_causal) is bool and type(enable_gqa) is bool and type(dropout_p) in (float, int)
    if plain and attn_mask is None and dropout_p == 0.0:
        result = _remembered.run(query, key, value, (is_causal, scale, enable_gqa))
        if result is not None:
            return result
    _check_options(attn_mask, dropout_p, is_causal, enable_gqa)
    return _checked(query, key, value, is_causal, scale, enable_gqa)


def _check_options(attn_mask: Any, dropout_p: Any, is_causal: Any, enable_gqa: Any) -> None:
    if attn_mask is not None:
        raise UnsupportedError(
            "attn_mask: expected None, masks are not computed by this version; use is_causal, or run "
            "sequences of different lengths apart"
        )
    if isinstance(dropout_p, bool) or not isinstance(dropout_p, Real):
        raise InvalidTypeError(f"dropout_p: expected a number, got {dropout_p!r}")
    if not 0.0 <= float(dropout_p) <= 1.0:
        raise InvalidValueError(f"dropout_p: expected 0 to 1, got {dropout_p}")
    if float(dropout_p) > 0.0:
        raise UnsupportedError(
            f"dropout_p: expected 0.0, this library computes inference only, got {dropout_p}"
        )
    for name, option in (("is_causal", is_causal), ("enable_gqa", enable_gqa)):
        if not isinstance(option, (bool, np.bool_)):
            raise InvalidTypeError(f"{name}: expected True or False, got {option!r}")


def _checked(
    query: Any, key: Any, value: Any, is_causal: bool, scale: float | None, enable_gqa: bool
) -> Any:
    kind = kind_of(query)
    inputs = opened_inputs(kind, query, key, value)
    sizes = geometry(*(kind.shape(x) for x in inputs), enable_gqa=enable_gqa)
    factor = check_scale(scale, sizes.head_dim)
    out = kind.empty(sizes.out_shape, inputs[0])
    if sizes.empty or sizes.key_length == 0:
        out[...] = 0.0  # rows that may attend to nothing, if any
    else:
        kernel = load(workload_of(sizes, "top_left" if is_causal else None))
        prepared = kernel.compute(kind, sizes, inputs, out, factor)
        if prepared is not None:
            _remembered.add(inputs, (is_causal, scale, enable_gqa), prepared, out)
    return kind.own_kind(out, query)
