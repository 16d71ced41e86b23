"""Drawn calls of ``attention``: shapes, strides, element types and combinations of options."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from attention_cases import LAYOUTS, NOT_DENSE
from dlpack_arrays import Array as DLPackArray
from hypothesis import strategies as st
from numpy.typing import NDArray

from tvm_attention.dtypes import numpy_dtype

Array = NDArray[Any]


@dataclass(frozen=True)
class Variety:
    """What is compiled into kernels: kept few, for each costs a second for each class of lengths."""

    features: str  # words out of FEATURES
    dims: tuple[int, int] = (16, 24)
    dtype: str = "float32"
    outputs: str = ""  # words out of "lse weights"

    def has(self, feature: str) -> bool:
        return feature in self.features.split()


FEATURES = ("bool", "float", "own", "causal", "window", "softcap", "alibi", "sinks", "lengths")
ALL = "causal window softcap alibi sinks lengths"
VARIETIES = [
    Variety(""),
    Variety("", dims=(5, 3), dtype="float16"),
    Variety("", dims=(64, 40), dtype="bfloat16", outputs="lse"),
    Variety("bool"),
    Variety("bool causal", dtype="bfloat16"),
    Variety("float", outputs="weights"),
    Variety("float", dims=(5, 3), dtype="float16", outputs="lse"),
    Variety("own causal", dtype="float16"),
    Variety("own softcap", dtype="bfloat16"),
    Variety("causal", outputs="lse weights"),
    Variety("window"),
    Variety("causal window softcap", dims=(64, 40), dtype="float16"),
    Variety("causal alibi", dims=(5, 3)),
    Variety("alibi window float", outputs="lse"),
    Variety("causal window sinks", dtype="bfloat16", outputs="lse"),
    Variety("sinks bool", outputs="lse weights"),
    Variety("lengths", dims=(5, 3)),
    Variety("lengths causal", dtype="bfloat16", outputs="weights"),
    Variety("lengths window bool", outputs="lse"),
    Variety("softcap lengths float"),
    Variety(f"{ALL} bool", outputs="lse weights"),
    Variety(f"{ALL} float", dims=(5, 3), outputs="lse"),
    Variety(f"{ALL} own", dtype="float16", outputs="lse"),
    Variety(f"{ALL} bool", dims=(64, 40), dtype="bfloat16"),
]


@dataclass(frozen=True)
class Call:
    """One drawn call; a query of fewer axes than 4 has one batch or one head."""

    variety: Variety
    axes: int
    batch: int
    kv_heads: int
    group: int
    rows: int
    keys: int
    causal: str | None
    window: tuple[int | None, int | None] | None
    softcap: float | None
    scale: float | None
    mask_axes: tuple[bool, ...]  # from the last: whether the mask has it, or broadcasts along it
    mask_layout: str
    slopes_per_batch: bool
    heads_inside: bool  # layout "bshd"
    layouts: tuple[str, str, str]
    out_layout: str | None
    kind: str
    poison: bool
    seed: int

    @property
    def shapes(self) -> tuple[tuple[int, int, int, int], ...]:
        """Of query, key and value, (batch, heads, rows, dim)."""
        heads = self.kv_heads * self.group
        return (
            (self.batch, heads, self.rows, self.variety.dims[0]),
            (self.batch, self.kv_heads, self.keys, self.variety.dims[0]),
            (self.batch, self.kv_heads, self.keys, self.variety.dims[1]),
        )

    def values(self) -> tuple[Array, Array, Array]:
        rng = np.random.default_rng(self.seed)
        dtype = numpy_dtype(self.variety.dtype)
        q, k, v = (rng.standard_normal(s, dtype=np.float32).astype(dtype) for s in self.shapes)
        return q, k, v

    def options(self) -> dict[str, Any]:
        """The options in NumPy, as both the reference and ``attention`` take them."""
        rng = np.random.default_rng(self.seed + 1)
        batch, heads, *_ = self.shapes[0]
        has = self.variety.has
        options: dict[str, Any] = {"causal": self.causal, "scale": self.scale}
        if has("window"):
            options["window"] = self.window
        if has("softcap"):
            options["softcap"] = self.softcap
        if has("alibi"):
            shape = (batch, heads) if self.slopes_per_batch else (heads,)
            options["alibi_slopes"] = rng.uniform(-0.05, 0.5, shape).astype(np.float32)
        if has("sinks"):
            sinks = rng.standard_normal(heads).astype(np.float32)
            options["sinks"] = np.where(rng.random(heads) < 0.2, np.float32(-np.inf), sinks)
        if has("lengths"):
            options["kv_lengths"] = rng.integers(0, self.keys, batch, endpoint=True)
        if has("bool") or has("float") or has("own"):
            options["mask"] = self._mask(rng)
        return options

    def _mask(self, rng: np.random.Generator) -> Array:
        extents = (self.batch, self.kv_heads * self.group, self.rows, self.keys)
        if self.axes < 4:
            extents = extents[2:] if self.axes == 2 else (self.batch, *extents[2:])
        chosen = zip(self.mask_axes, reversed(extents), strict=False)
        shape = tuple(extent if whole else 1 for whole, extent in chosen)[::-1]
        hidden = rng.random(shape) < rng.choice([0.0, 0.3, 0.9, 1.0])
        if shape:
            hidden[..., : rng.integers(0, shape[-1], endpoint=True)] |= rng.random() < 0.2
        if self.variety.has("bool"):
            return placed_mask(~hidden, self.mask_layout)
        dtype = numpy_dtype(self.variety.dtype if self.variety.has("own") else "float32")
        added = np.where(hidden, np.float32(-np.inf), rng.standard_normal(shape, np.float32))
        return placed_mask(added.astype(dtype), self.mask_layout)


def placed_mask(values: Array, layout: str) -> Array:
    """Equal to the values, in memory of another layout."""
    if layout == "transposed":
        return np.ascontiguousarray(values.T).T
    if layout == "stepped" and values.ndim:
        wide = np.repeat(values, 3, axis=-1)
        wide[..., 1::3] = ~wide[..., 1::3] if values.dtype == bool else np.nan
        return wide[..., ::3]
    if layout == "reversed" and values.ndim:
        return np.ascontiguousarray(values[..., ::-1])[..., ::-1]
    return values


WINDOW_SIDES = [None, -1, 0, 1, 3, 17, 64, 300]


@st.composite
def calls(draw: st.DrawFn) -> Call:
    variety = draw(st.sampled_from(VARIETIES))
    axes = draw(st.sampled_from([4, 4, 4, 3, 2]))
    factor = draw(st.sampled_from([None, None, 0.5, -1.0, 0.0]))
    causal = draw(st.sampled_from(["top_left", "bottom_right"])) if variety.has("causal") else None
    return Call(
        variety=variety,
        axes=axes,
        batch=draw(st.integers(0, 3)) if axes > 2 else 1,
        kv_heads=draw(st.integers(1, 3)) if axes == 4 else 1,
        group=draw(st.sampled_from([1, 3])) if axes == 4 else 1,
        rows=draw(st.sampled_from([0, 1, 1, *range(9, 70)])),
        keys=draw(st.one_of(st.integers(0, 9), st.integers(10, 250), st.integers(257, 400))),
        causal=causal,
        window=(draw(st.sampled_from(WINDOW_SIDES)), draw(st.sampled_from(WINDOW_SIDES))),
        softcap=draw(st.sampled_from([0.5, 2.0, 30.0])),
        scale=None if factor is None else factor / variety.dims[0] ** 0.5,
        mask_axes=tuple(draw(st.lists(st.booleans(), max_size=axes))),
        mask_layout=draw(st.sampled_from(["dense", "transposed", "stepped", "reversed"])),
        slopes_per_batch=draw(st.booleans()),
        heads_inside=axes == 4 and draw(st.booleans()),
        layouts=tuple(draw(st.sampled_from(LAYOUTS + NOT_DENSE)) for _ in range(3)),  # type: ignore[arg-type]
        out_layout=draw(st.sampled_from([None, None, *LAYOUTS])),
        kind=draw(st.sampled_from(["numpy", "torch", "dlpack"])),
        poison=draw(st.booleans()),
        seed=draw(st.integers(0, 2**32 - 2)),
    )


def as_kind(array: Array, kind: str) -> Any:
    """An array of another kind on the same memory, or on a copy where that kind cannot have it."""
    if kind == "numpy":
        return array
    array = np.asarray(array)  # a mask without axes may be a NumPy number
    if any(s < 0 for s in array.strides) or not array.flags.writeable:  # not in torch
        array = array.copy()
    if str(array.dtype) == "bfloat16":
        tensor = torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    else:
        tensor = torch.from_numpy(array)
    return tensor if kind == "torch" else DLPackArray(tensor)


def as_numpy(result: Any) -> Array:
    """What an array of any kind holds."""
    if isinstance(result, DLPackArray):
        return as_numpy(result.held)
    if isinstance(result, torch.Tensor) and result.dtype == torch.bfloat16:
        return result.view(torch.int16).numpy().view(numpy_dtype("bfloat16"))
    return np.asarray(result)
