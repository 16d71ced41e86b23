"""Attention as a function, with the signature of torch.nn.functional.scaled_dot_product_attention."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from tvm_attention import environment
from tvm_attention.arrays import (
    ArrayKind,
    DLPackArrays,
    NumPyArrays,
    Shape,
    TorchTensors,
    kind_of,
)
from tvm_attention.errors import InvalidTypeError, InvalidValueError, UnsupportedError
from tvm_attention.kernel import Kernel, PreparedCall
from tvm_attention.operands import (
    Geometry,
    check_arrays,
    check_scale,
    geometry,
    is_dense,
    workload_of,
)
from tvm_attention.runtime import load
from tvm_attention.threads import launcher

FastCall = Callable[[Any, Any, Any], Any]

# Calls seen before, by their signature; a call returns None when something else changed (device, grad
# mode, number of threads) and the checks must run again.
_calls: dict[tuple[Any, ...], FastCall] = {}
_MOST_CALLS = 4096


def forget_calls() -> None:
    """Drop remembered calls, so that new tuning records are seen."""
    _calls.clear()


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
    try:
        call = _calls.get(_signature(query, key, value, (is_causal, scale, enable_gqa)))
    except (AttributeError, TypeError):
        call = None  # no array, or an option that is no number: the checks below say so
    if call is not None and attn_mask is None and dropout_p == 0.0:
        result = call(query, key, value)
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
    if isinstance(dropout_p, bool) or not isinstance(dropout_p, (int, float)):
        raise InvalidTypeError(f"dropout_p: expected a number, got {dropout_p!r}")
    if not 0.0 <= dropout_p <= 1.0:
        raise InvalidValueError(f"dropout_p: expected 0 to 1, got {dropout_p}")
    if dropout_p > 0.0:
        raise UnsupportedError(
            f"dropout_p: expected 0.0, this library computes inference only, got {dropout_p}"
        )
    for name, option in (("is_causal", is_causal), ("enable_gqa", enable_gqa)):
        if not isinstance(option, bool):
            raise InvalidTypeError(f"{name}: expected True or False, got {option!r}")


def _checked(
    query: Any, key: Any, value: Any, is_causal: bool, scale: float | None, enable_gqa: bool
) -> Any:
    kind = kind_of(query)
    inputs = (query, key, value)
    check_arrays(kind, *inputs)
    sizes = geometry(kind.shape(query), kind.shape(key), kind.shape(value), enable_gqa=enable_gqa)
    factor = check_scale(scale, sizes.head_dim)
    out = kind.empty(sizes.out_shape, query)
    if not sizes.empty and sizes.key_length == 0:
        out[...] = 0.0  # rows that may attend to nothing
    elif not sizes.empty:
        kernel = load(workload_of(sizes, "top_left" if is_causal else None))
        kernel.compute(kind, sizes, inputs, out, factor)
        if all(is_dense(kind.shape(x), kind.strides(x)) for x in inputs):
            _remember(kind, kernel, sizes, inputs, out, factor, (is_causal, scale, enable_gqa))
    return kind.own_kind(out, query) if isinstance(kind, DLPackArrays) else out


def _remember(
    kind: ArrayKind,
    kernel: Kernel,
    sizes: Geometry,
    inputs: tuple[Any, Any, Any],
    out: Any,
    scale: float,
    options: tuple[Any, ...],
) -> None:
    make = _FAST_CALLS.get(kind.name)
    if make is None:
        return
    strides = tuple(kind.strides(x) for x in (*inputs, out))
    prepared = kernel.prepare(sizes, strides, scale)
    if len(_calls) >= _MOST_CALLS:
        _calls.clear()
    _calls[_signature(*inputs, options)] = make(prepared, sizes.out_shape, inputs[0])


def _signature(query: Any, key: Any, value: Any, options: tuple[Any, ...]) -> tuple[Any, ...]:
    """All that decides how a call runs but the addresses: torch's strides are a method, NumPy's not."""
    if isinstance(query, np.ndarray):
        return (
            query.shape, query.strides, key.shape, key.strides, value.shape, value.strides,
            query.dtype, key.dtype, value.dtype, *options,
        )  # fmt: skip
    return (
        query.shape, query.stride(), key.shape, key.stride(), value.shape, value.stride(),
        query.dtype, key.dtype, value.dtype, *options,
    )  # fmt: skip


def _fast_torch_call(prepared: PreparedCall, out_shape: Shape, like: Any) -> FastCall:
    torch = sys.modules["torch"]
    empty, empty_like, is_grad_enabled = torch.empty, torch.empty_like, torch.is_grad_enabled
    same_shape, run, threads, pool = (
        tuple(like.shape) == out_shape,
        prepared.run,
        prepared.threads,
        launcher(),
    )
    fixed_threads = environment.num_threads() is not None

    def call(query: Any, key: Any, value: Any) -> Any:
        if not (query.is_cpu and key.is_cpu and value.is_cpu):
            return None
        if (query.requires_grad or key.requires_grad or value.requires_grad) and is_grad_enabled():
            return None
        if not fixed_threads and pool.max_threads() != threads:
            return None
        out = empty_like(query) if same_shape else empty(out_shape)
        run(query.data_ptr(), key.data_ptr(), value.data_ptr(), out.data_ptr())
        return out

    return call


def _fast_numpy_call(prepared: PreparedCall, out_shape: Shape, like: Any) -> FastCall:
    same_shape, run, threads, pool = (
        like.shape == out_shape,
        prepared.run,
        prepared.threads,
        launcher(),
    )
    fixed_threads = environment.num_threads() is not None

    def call(query: Any, key: Any, value: Any) -> Any:
        if not (isinstance(key, np.ndarray) and isinstance(value, np.ndarray)):
            return None
        if not fixed_threads and pool.max_threads() != threads:
            return None
        out = np.empty_like(query, subok=False) if same_shape else np.empty(out_shape, np.float32)
        run(*(x.__array_interface__["data"][0] for x in (query, key, value, out)))
        return out

    return call


_FAST_CALLS: dict[str, Callable[[PreparedCall, Shape, Any], FastCall]] = {
    TorchTensors.name: _fast_torch_call,
    NumPyArrays.name: _fast_numpy_call,
}
