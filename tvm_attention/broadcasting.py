"""Query, key and value whose leading axes differ, as torch's function takes them."""

from __future__ import annotations

from typing import Any

import numpy as np

from tvm_attention.arrays import ArrayKind, Shape

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


def _with_own_heads(leading: list[Shape]) -> list[Shape]:
    if not all(leading):
        raise ValueError("no axis of heads")
    batch = np.broadcast_shapes(*(axes[:-1] for axes in leading))
    query, *others = (axes[-1:] for axes in leading)
    heads = np.broadcast_shapes(*others)
    return [(*batch, *query), (*batch, *heads), (*batch, *heads)]
