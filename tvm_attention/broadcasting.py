"""Query, key and value whose leading axes differ or are many, as torch's function takes them."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from tvm_attention.arrays import ArrayKind, NumPyArrays, Shape, TorchTensors
from tvm_attention.errors import InvalidValueError

Inputs = tuple[Any, Any, Any]


def broadcast(kind: ArrayKind, inputs: Inputs, *, enable_gqa: bool) -> Inputs:
    """The three, opened, as views with the leading axes that they have in common: axes of one element
    and axes that are missing are repeated, all in place. With ``enable_gqa`` the query keeps its own
    number of heads.

    Inputs whose axes do not fit come back as they are, for the check of shapes to say why.
    """
    shapes = [kind.shape(x) for x in inputs]
    leading = [s[:-2] for s in shapes]
    if leading[0] == leading[1] == leading[2] or min(map(len, shapes)) < 2:
        return inputs
    try:
        targets = _with_own_heads(leading) if enable_gqa else [np.broadcast_shapes(*leading)] * 3
    except ValueError:
        return inputs
    query, key, value = (
        x if target == own else kind.expanded(x, (*target, *shape[-2:]))
        for x, target, own, shape in zip(inputs, targets, leading, shapes, strict=True)
    )
    return query, key, value


def has_many_axes(kind: ArrayKind, query: Any) -> bool:
    """Whether a call has more axes than kernels have, and is of a kind that can be :func:`folded`."""
    if getattr(query, "is_nested", False):  # which has no shape
        return False
    return type(kind) in (NumPyArrays, TorchTensors) and len(kind.shape(query)) > 4


def folded(
    kind: ArrayKind, inputs: Inputs, mask: Any, *, enable_gqa: bool
) -> tuple[Inputs, Any, Shape]:
    """The three and a mask or None, all opened, with one axis in place of all before the heads; and the
    extents that it stands for. Copied where their strides are not those of one axis.

    Raises InvalidValueError for axes that do not fit.
    """
    inputs = broadcast(kind, inputs, enable_gqa=enable_gqa)
    shapes = [kind.shape(x) for x in inputs]
    leading = shapes[0][:-3]
    if any(shape[:-3] != leading for shape in shapes):
        raise InvalidValueError(
            f"query, key and value: expected axes before the last two that broadcast, got shapes {shapes}"
        )
    count = math.prod(leading)
    query, key, value = (x.reshape((count, *s[-3:])) for x, s in zip(inputs, shapes, strict=True))
    if mask is None or len(kind.shape(mask)) < 4:
        return (query, key, value), mask, leading
    own, scores = kind.shape(mask)[:-3], kind.shape(mask)[-3:]
    if math.prod(own) == 1:
        return (query, key, value), mask.reshape(scores), leading
    if len(own) > len(leading) or any(
        n not in (1, m) for n, m in zip(own[::-1], leading[::-1], strict=False)
    ):
        raise InvalidValueError(
            f"attn_mask: expected leading axes that broadcast to {leading}, got shape {own + scores}"
        )
    mask = kind.expanded(mask, (*leading, *scores)).reshape((count, *scores))
    return (query, key, value), mask, leading


def _with_own_heads(leading: list[Shape]) -> list[Shape]:
    if not all(leading):
        raise ValueError("no axis of heads")
    batch = np.broadcast_shapes(*(axes[:-1] for axes in leading))
    query, *others = (axes[-1:] for axes in leading)
    heads = np.broadcast_shapes(*others)
    return [(*batch, *query), (*batch, *heads), (*batch, *heads)]
