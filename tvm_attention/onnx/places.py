"""Which keys a row of ONNX's Attention sees by its place, in terms of ``tvm_attention.attention``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tvm_attention.workload import UNBOUNDED

Array = NDArray[Any]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Places:
    """Options of ``attention``, and ``band``, a bool mask (rows, keys) where none of them says it."""

    causal: str | None = None
    window: tuple[int, int] | None = None
    kv_lengths: Array | None = None
    band: Array | None = None

    @property
    def options(self) -> dict[str, Any]:
        """The keyword arguments."""
        return {"causal": self.causal, "window": self.window, "kv_lengths": self.kv_lengths}


def places(
    attributes: Mapping[str, Any],
    *,
    batch: int,
    rows: int,
    keys: int,
    past: int,
    lengths: Array | None,
) -> Places:
    """The operator's first row stands at key ``past``, with ``lengths`` at ``lengths - rows``."""
    causal = bool(attributes.get("is_causal", 0))
    left = attributes.get("left_window_size", UNBOUNDED)
    right = attributes.get("right_window_size", UNBOUNDED)
    window = None if left == right == UNBOUNDED else (left, right)
    at_the_end = "bottom_right" if causal else None
    if lengths is not None:  # the place of each batch element is that of our bottom right
        return Places(causal=at_the_end, window=window, kv_lengths=lengths)
    if not causal and window is None:
        return Places()
    if causal and past == 0:
        return Places(causal="top_left", window=window)
    further = past - (keys - rows)  # than our bottom right
    if further == 0:
        return Places(causal=at_the_end, window=window)
    if causal or right == 0:
        if further < 0:  # keys beyond the last row's place do not matter
            ends = np.full(batch, past + rows)
            return Places(causal="bottom_right", window=(left, UNBOUNDED), kv_lengths=ends)
        right = 0
    moved = [
        side if side == UNBOUNDED else side + by
        for side, by in ((left, -further), (right, further))
    ]
    if all(m >= 0 or side == UNBOUNDED for m, side in zip(moved, (left, right), strict=True)):
        return Places(window=(moved[0], moved[1]))
    return Places(band=_band(rows, keys, past, left, right))


def _band(rows: int, keys: int, past: int, left: int, right: int) -> Array:
    """A window that lies wholly on one side of our bottom right, which no window of ours does."""
    own = past + np.arange(rows)[:, None]
    key = np.arange(keys)
    band = np.ones((rows, keys), bool)
    if left != UNBOUNDED:
        band &= key >= own - left
    if right != UNBOUNDED:
        band &= key <= own + right
    return band
