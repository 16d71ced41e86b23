"""Attention as functions: the full call, and its face with the signature of torch's."""

from __future__ import annotations

from functools import partial
from numbers import Real
from typing import Any

from tvm_attention.arrays import kind_of
from tvm_attention.attend import attend, opened
from tvm_attention.broadcasting import folded, has_many_axes
from tvm_attention.errors import InvalidTypeError, InvalidValueError, UnsupportedError
from tvm_attention.operands import check_flag, check_scale, opened_inputs
from tvm_attention.remembered import Options, RememberedCalls
from tvm_attention.signatures import signature
from tvm_attention.steps import forget_steps

_remembered = RememberedCalls()


def forget_calls() -> None:
    """Drop remembered calls, so that new tuning records are seen."""
    _remembered.forget()
    forget_steps()


def attention(
    query: Any,
    key: Any,
    value: Any,
    *,
    mask: Any = None,
    causal: str | None = None,
    window: tuple[int, int] | None = None,
    softcap: float | None = None,
    alibi_slopes: Any = None,
    sinks: Any = None,
    kv_lengths: Any = None,
    scale: float | None = None,
    layout: str = "bhsd",
    return_lse: bool = False,
    return_weights: bool = False,
    out: Any = None,
) -> Any:
    """softmax(scale * query key^T, modified and masked) value.

    query (B, Hq, L, E), key (B, Hkv, S, E), value (B, Hkv, S, Ev), float32, float16 or bfloat16, computed
    in float32; Hq may be a multiple of Hkv. Also without the leading axes: (B, L, E) or (L, E). With
    ``layout="bshd"`` rows come before heads, (B, L, Hq, E). NumPy arrays, torch tensors or anything with
    DLPack, on the processor or one of NVIDIA's GPUs, all of one kind; the result is of that kind, laid out
    as the query. Any strides; no copy is made while the last axis is dense.

    A score is scale * (q . k), then, each where given: capped to ``softcap`` * tanh(score / softcap);
    lowered by ``alibi_slopes`` (Hq,) or (B, Hq) times the distance |i + offset - j|; raised by a floating
    ``mask``. Key j is not seen by query i, whatever it holds, where a bool ``mask`` is False or a floating
    one -inf; where j > i + offset under ``causal``; outside i + offset - left <= j <= i + offset + right
    for ``window`` (left, right), -1 being unbounded; and from ``kv_lengths`` (B,) on. ``offset`` is 0 for
    causal="top_left", otherwise it lets the last query stand at the last key. A mask, read in place,
    broadcasts to (B, Hq, L, S). ``sinks`` (Hq,) are logits that join a row's denominator only. ``scale``
    defaults to 1 / sqrt(E). A query that sees nothing gives zeros.

    ``out`` receives the result, if given. With ``return_lse`` the log-sum-exp of every row, float32
    (B, Hq, L), -inf where nothing is seen, follows the result; with ``return_weights`` the softmax rows
    (B, Hq, L, S) in the query's dtype, which are computed by a second kernel; on a GPU of torch tensors
    alone, 256 keys at a time.

    Slopes, sinks and lengths that are torch tensors on the query's GPU are read there: nobody waits for
    them, nor looks whether they are sound; lengths are cut to S.

    Raises InvalidValueError (a ValueError), InvalidTypeError (a TypeError) or UnsupportedError (a
    NotImplementedError) before anything is computed.
    """
    if type(scale) is not float and scale is not None:
        scale = check_scale(scale, 1)
    options = signature(causal, window, softcap, alibi_slopes, sinks, kv_lengths)
    repeatable = options is not None and type(layout) is str
    repeatable = repeatable and type(return_lse) is bool and return_weights is False
    known: Options = ("attention", layout, return_lse, scale, options)
    if repeatable:
        new_lse = partial(_new_lse, layout) if return_lse else None
        result = _remembered.run(query, key, value, known, mask, out, new_lse)
        if result is not None:
            return result
    call = opened(
        query, key, value, layout=layout, enable_gqa=True, mask=mask, causal=causal, window=window,
        softcap=softcap, alibi_slopes=alibi_slopes, sinks=sinks, kv_lengths=kv_lengths, scale=scale,
    )  # fmt: skip
    done = attend(call, out=out, return_lse=return_lse, return_weights=return_weights)
    if repeatable and done.prepared is not None and call.call.mask is mask:
        inputs = query, key, value
        _remembered.add(inputs, known, done.prepared, done.out, mask, out, *done.extra)
    return done.returned()


def _new_lse(layout: str, query: Any) -> Any:
    """An array for the log-sum-exp of a call's rows."""
    shape = tuple(query.shape[:-1])
    if layout == "bshd" and len(shape) == 3:
        shape = shape[0], shape[2], shape[1]
    return kind_of(query).empty(shape, query, "float32")


def attention_again(
    query: Any,
    key: Any,
    value: Any,
    mask: Any,
    causal: str | None,
    window: tuple[int, int] | None,
    softcap: float | None,
    scale: float | None,
    alibi_slopes: Any,
    sinks: Any,
    kv_lengths: Any,
) -> Any:
    """The result of a call of :func:`attention` that came before, None for another. Whoever calls has
    made sure that ``scale`` is of this very type, as torch does by an operator's schema."""
    options = signature(causal, window, softcap, alibi_slopes, sinks, kv_lengths)
    if options is None:
        return None
    known = ("attention", "bhsd", False, scale, options)
    return _remembered.run(query, key, value, known, mask)


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
    """softmax(scale * query key^T + attn_mask) value, with the meaning of torch's function of this name.

    query (B, Hq, L, E), key (B, Hkv, S, E), value (B, Hkv, S, Ev), or without the leading axes, as for
    :func:`attention`; leading axes that differ are broadcast, and of NumPy arrays and torch tensors there
    may be more than one of batches. ``attn_mask`` is bool (True = attend) or
    floating (added to the scores) and broadcasts to (B, Hq, L, S). ``is_causal`` lets query i see keys
    0..i; with a mask, both apply. ``scale`` defaults to 1 / sqrt(E). ``enable_gqa`` allows Hq to be a
    multiple of Hkv.

    Raises InvalidValueError (a ValueError), InvalidTypeError (a TypeError) or UnsupportedError (a
    NotImplementedError) before anything is computed: dropout is not, this is inference.
    """
    if type(scale) is not float and scale is not None:
        scale = check_scale(scale, 1)
    repeatable = type(is_causal) is bool and type(enable_gqa) is bool
    repeatable = repeatable and type(dropout_p) in (float, int) and dropout_p == 0.0
    if repeatable:
        result = _remembered.run(query, key, value, (is_causal, scale, enable_gqa), attn_mask)
        if result is not None:
            return result
    check_options(dropout_p, is_causal, enable_gqa)
    if getattr(query, "ndim", 0) > 4:
        kind = kind_of(query)
        if has_many_axes(kind, query):
            inputs = opened_inputs(kind, query, key, value)
            mask = None if attn_mask is None else kind.opened("attn_mask", attn_mask)
            inputs, mask, leading = folded(kind, inputs, mask, enable_gqa=bool(enable_gqa))
            result = scaled_dot_product_attention(
                *inputs, mask, is_causal=is_causal, scale=scale, enable_gqa=enable_gqa
            )
            return result.reshape((*leading, *result.shape[1:]))
    call = opened(
        query, key, value, enable_gqa=bool(enable_gqa), broadcasts=True, mask=attn_mask,
        mask_name="attn_mask", causal="top_left" if is_causal else None, scale=scale,
    )  # fmt: skip
    done = attend(call)
    if repeatable and done.prepared is not None and call.call.mask is attn_mask:
        options = (is_causal, scale, enable_gqa)
        _remembered.add((query, key, value), options, done.prepared, done.out, attn_mask)
    return done.returned()


def check_options(dropout_p: Any, is_causal: Any, enable_gqa: Any) -> None:
    """Raise for what torch's function takes and this library does not, or what neither does."""
    if isinstance(dropout_p, bool) or not isinstance(dropout_p, Real):
        raise InvalidTypeError(f"dropout_p: expected a number, got {dropout_p!r}")
    if not 0.0 <= float(dropout_p) <= 1.0:
        raise InvalidValueError(f"dropout_p: expected 0 to 1, got {dropout_p}")
    if float(dropout_p) > 0.0:
        raise UnsupportedError(
            f"dropout_p: expected 0.0, this library computes inference only, got {dropout_p}"
        )
    check_flag("is_causal", is_causal)
    check_flag("enable_gqa", enable_gqa)
