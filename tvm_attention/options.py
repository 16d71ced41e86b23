"""The options of one call of attention: checked, and in the form kernels take."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tvm_attention.arrays import ArrayKind
from tvm_attention.errors import InvalidTypeError, InvalidValueError
from tvm_attention.masks import Mask, opened_mask
from tvm_attention.operands import Geometry, check_scale
from tvm_attention.small_arrays import floats, floats_there, numbers_there, whole_numbers
from tvm_attention.workload import CAUSAL_KINDS

# Softcaps by which a float32 score can be divided and multiplied.
_LEAST_SOFTCAP = 2.0**-126
_MOST_SOFTCAP = 2.0**127


@dataclass(frozen=True, slots=True, eq=False)
class Options:
    """``window`` is (left, right), -1 unbounded, None where both sides are; under ``causal`` its right
    side is always unbounded. The arrays are copies: alibi_slopes float32 (batch, query heads), sinks
    float32 (query heads,), kv_lengths int32 (batch,), each C-contiguous. They may be torch tensors on the
    query's GPU, whose numbers are then not looked at; lengths are cut to the keys that there are."""

    scale: float
    causal: str | None = None
    window: tuple[int, int] | None = None
    softcap: float | None = None
    mask: Mask | None = None
    alibi_slopes: Any = None
    sinks: Any = None
    kv_lengths: Any = None


def opened_options(
    kind: ArrayKind,
    sizes: Geometry,
    *,
    query_dtype: str,
    mask: Any = None,
    causal: Any = None,
    window: Any = None,
    softcap: Any = None,
    alibi_slopes: Any = None,
    sinks: Any = None,
    kv_lengths: Any = None,
    scale: Any = None,
    mask_name: str = "mask",
) -> Options:
    """The options of a call whose query is of ``kind`` and ``query_dtype``, with extents ``sizes``.

    ``alibi_slopes``, ``sinks`` and ``kv_lengths`` may be arrays of any kind or sequences. Errors call
    the mask ``mask_name``. Raises InvalidTypeError, InvalidValueError or UnsupportedError for what no
    kernel serves.
    """
    _check_causal(causal)
    return Options(
        scale=check_scale(scale, sizes.head_dim),
        causal=causal,
        window=None if window is None else _window(window, causal, sizes),
        softcap=None if softcap is None else _softcap(softcap),
        mask=None if mask is None else opened_mask(kind, sizes, mask, query_dtype, mask_name),
        alibi_slopes=None if alibi_slopes is None else _alibi_slopes(kind, alibi_slopes, sizes),
        sinks=None if sinks is None else _sinks(kind, sinks, sizes),
        kv_lengths=None if kv_lengths is None else _kv_lengths(kind, kv_lengths, sizes),
    )


def _check_causal(causal: Any) -> None:
    if causal is None or (isinstance(causal, str) and causal in CAUSAL_KINDS):
        return
    error = InvalidValueError if isinstance(causal, str) else InvalidTypeError
    raise error(
        f'causal: expected None, "top_left" (row i sees keys up to i) or "bottom_right" (the last row '
        f"sees the last key), got {causal!r}; name which"
    )


def _window(window: Any, causal: str | None, sizes: Geometry) -> tuple[int, int] | None:
    pair = isinstance(window, Sequence) and not isinstance(window, (str, bytes))
    if not pair or len(window) != 2:
        raise InvalidTypeError(
            f"window: expected a pair (left, right) of whole numbers, -1 or None for no bound, got "
            f"{window!r}; a window of w keys to each side is (w, w)"
        )
    # Beyond all rows and keys a bound says nothing, and this one cannot overflow.
    most = sizes.query_length + sizes.key_length
    left, right = (min(_side(window, side), most) for side in window)
    if causal is not None:
        right = -1  # causal is the tighter bound
    return None if left == right == -1 else (left, right)


def _side(window: Any, side: Any) -> int:
    if side is None:
        return -1
    try:
        if isinstance(side, (bool, np.bool_)):
            raise TypeError
        bound = operator.index(side)
    except TypeError:
        raise InvalidTypeError(
            f"window: expected whole numbers, -1 or None for no bound, got {window!r}"
        ) from None
    if bound < -1:
        raise InvalidValueError(
            f"window: expected sides of at least 0, -1 or None for no bound, got {window!r}"
        )
    return bound


def _softcap(softcap: Any) -> float:
    try:
        if isinstance(softcap, (bool, np.bool_, str, bytes)):
            raise TypeError
        cap = float(softcap)
    except OverflowError:
        cap = math.inf
    except (TypeError, ValueError, RuntimeError):
        raise InvalidTypeError(f"softcap: expected a number or None, got {softcap!r}") from None
    if not _LEAST_SOFTCAP <= cap <= _MOST_SOFTCAP:
        raise InvalidValueError(
            f"softcap: expected a finite float32 number above 0, got {cap}; None means no cap"
        )
    return cap


def _alibi_slopes(kind: ArrayKind, given: Any, sizes: Geometry) -> Any:
    slopes, there = _small(kind, "alibi_slopes", given)
    shapes = ((sizes.query_heads,), (sizes.batch, sizes.query_heads))
    if tuple(slopes.shape) not in shapes:
        raise InvalidValueError(
            f"alibi_slopes: expected shape {shapes[0]} (query heads,) or {shapes[1]} (batch, query "
            f"heads), got {tuple(slopes.shape)}"
        )
    if there:
        return slopes.expand(shapes[1]).contiguous()
    if not np.isfinite(slopes).all():
        raise InvalidValueError(f"alibi_slopes: expected finite float32 numbers, got {slopes}")
    return np.ascontiguousarray(np.broadcast_to(slopes, shapes[1]))


def _sinks(kind: ArrayKind, given: Any, sizes: Geometry) -> Any:
    sinks, there = _small(kind, "sinks", given)
    if tuple(sinks.shape) != (sizes.query_heads,):
        raise InvalidValueError(
            f"sinks: expected shape {(sizes.query_heads,)} (query heads,), got {tuple(sinks.shape)}"
        )
    if not there and not (sinks < np.inf).all():
        raise InvalidValueError(
            f"sinks: expected finite float32 numbers, or -inf for none, got {sinks}"
        )
    return sinks


def _small(kind: ArrayKind, name: str, given: Any) -> tuple[Any, bool]:
    """Float32 numbers, and whether they are where the query is, on a GPU."""
    there = floats_there(kind, given)
    return (floats(name, given), False) if there is None else (there, True)


def _kv_lengths(kind: ArrayKind, given: Any, sizes: Geometry) -> Any:
    there = numbers_there(kind, given)
    lengths = whole_numbers("kv_lengths", given) if there is None else there
    if tuple(lengths.shape) != (sizes.batch,):
        raise InvalidValueError(
            f"kv_lengths: expected shape {(sizes.batch,)} (batch,), got {tuple(lengths.shape)}"
        )
    if there is not None:
        return there.clamp(0, sizes.key_length)
    if ((lengths < 0) | (lengths > sizes.key_length)).any():
        raise InvalidValueError(
            f"kv_lengths: expected 0 to {sizes.key_length}, the keys that there are, got {lengths}"
        )
    return lengths.astype(np.int32, order="C")
