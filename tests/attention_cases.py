"""Inputs in awkward places and layouts, kernels of given candidates, comparison with the reference."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from tvm_attention import reference
from tvm_attention.accuracy import FLOAT32_ROUNDINGS, ROUNDING
from tvm_attention.compiler import CompiledKernel, kernel_key, load_kernel
from tvm_attention.kernel import Kernel
from tvm_attention.kernel_source import KernelSource
from tvm_attention.random_calls import random_inputs
from tvm_attention.schedules import Candidate
from tvm_attention.target import LEVELS, HardwareTarget, detect_target
from tvm_attention.workload import AttentionWorkload

Array = NDArray[np.float32]

MARGIN = 257  # elements of NaN on each side of an array; odd, so that rows are not aligned
# Layouts that kernels read in place, and those of which they get a copy.
LAYOUTS = ("dense", "heads inside", "padded rows", "reversed rows", "gaps between heads")
NOT_DENSE = ("last axis skipped", "last axis outside", "last axis reversed")
_loaded: dict[str, CompiledKernel] = {}


def runnable_levels() -> list[str]:
    """The instruction-set levels that this processor has."""
    host = detect_target()
    levels = LEVELS[host.kind]
    return list(levels[: levels.index(host.isa) + 1])


def kernel_of(
    workload: AttentionWorkload,
    candidate: Candidate,
    target: HardwareTarget | None = None,
    threads: int | None = None,
) -> Kernel:
    """A candidate's kernel, whatever the tuning logs say."""
    target = target or detect_target()
    key = kernel_key(workload, target, candidate)
    if key not in _loaded:
        _loaded[key] = load_kernel(workload, target, candidate)
    compiled = _loaded[key]
    return Kernel(workload, KernelSource(candidate, None, "test", ()), compiled, threads)


def poisoned(shape: tuple[int, ...]) -> Array:
    """An output in which anything that is not written stands out."""
    return np.full(shape, np.nan, np.float32)


class Guarded:
    """An array in the middle of NaN: what is read outside it spoils the result, and what is written
    outside it is noticed."""

    def __init__(
        self, shape: tuple[int, ...], margin: int = MARGIN, dtype: DTypeLike = np.float32
    ) -> None:
        size = int(np.prod(shape))
        self.whole = np.full(size + 2 * margin, np.nan, dtype)
        self.array = self.whole[margin : margin + size].reshape(shape)
        self._margin = margin

    def assert_untouched_outside(self) -> None:
        for edge in (self.whole[: self._margin], self.whole[-self._margin :]):
            assert np.isnan(edge).all(), "written outside the array"


def laid_out(values: Array, layout: str) -> Array:
    """Equal to ``values`` (batch, heads, rows, columns), in NaN-filled memory of the layout."""
    b, h, n, d = values.shape
    dtype = values.dtype
    if layout == "dense":
        view = Guarded(values.shape, dtype=dtype).array
    elif layout == "heads inside":  # (batch, rows, heads, columns), as projections leave it
        view = Guarded((b, n, h, d), dtype=dtype).array.transpose(0, 2, 1, 3)
    elif layout == "padded rows":
        view = Guarded((b, h, n, d + 3), dtype=dtype).array[..., 1 : d + 1]
    elif layout == "reversed rows":
        view = Guarded(values.shape, dtype=dtype).array[:, :, ::-1]
    elif layout == "gaps between heads":
        view = Guarded((2 * b, h + 1, n + 2, d), dtype=dtype).array[::2, :h, 1 : n + 1]
    elif layout == "last axis skipped":
        view = Guarded((b, h, n, 2 * d), dtype=dtype).array[..., ::2]
    elif layout == "last axis outside":
        view = Guarded(values.shape[::-1], dtype=dtype).array.transpose(3, 2, 1, 0)
    elif layout == "last axis reversed":
        view = Guarded(values.shape, dtype=dtype).array[..., ::-1]
    else:
        raise AssertionError(layout)
    view[...] = values
    return view


def with_axes(array: Array, axes: int) -> Array:
    """(batch, heads, rows, columns) without the axes that a call of 3 or of 2 axes has not."""
    return array[0, 0] if axes == 2 else array[:, 0] if axes == 3 else array


def inputs(workload: AttentionWorkload, layout: str = "dense", seed: int = 0) -> tuple[Array, ...]:
    """Unit-normal query, key and value in a layout."""
    return tuple(laid_out(x, layout) for x in random_inputs(workload, seed))


def allowed_error(value: NDArray[Any]) -> float:
    """The promised bound; the range includes zero, for results of few values round like any other."""
    span = float(np.max(value, initial=0.0) - np.min(value, initial=0.0))
    return FLOAT32_ROUNDINGS * ROUNDING * span


def assert_right(
    result: NDArray[Any],
    query: NDArray[Any],
    key: NDArray[Any],
    value: NDArray[Any],
    *,
    causal: str | None = None,
    scale: float | None = None,
    what: str = "",
) -> None:
    """The result (B, Hq, L, Ev) is within the bound of the float64 reference; a NaN never is."""
    expected = reference.attention(query, key, value, causal=causal, scale=scale)
    assert result.dtype == np.float32, what
    assert result.shape == expected.shape, what
    error = float(np.max(np.abs(result - expected), initial=0.0))
    limit = allowed_error(value)
    assert error <= limit, f"{what}: error {error:.3g}, allowed {limit:.3g}"


def lengths_around(tiles: Iterator[int] | set[int], most: int) -> list[int]:
    """One, and one below, at and above each tile size, up to ``most``."""
    near = {1} | {t + step for t in tiles for step in (-1, 0, 1)}
    return sorted(n for n in near if 1 <= n <= most)


def unit_normal(*shape: int, seed: int = 0) -> Array:
    """Other values for each shape and seed."""
    return np.random.default_rng([seed, *shape]).standard_normal(shape, dtype=np.float32)


def query_key_value(
    heads: int = 4, kv_heads: int = 4, rows: int = 12, keys: int = 20
) -> tuple[Array, Array, Array]:
    """A batch of two, head dimension 16 and value dimension 24."""
    return (
        unit_normal(2, heads, rows, 16, seed=1),
        unit_normal(2, kv_heads, keys, 16, seed=2),
        unit_normal(2, kv_heads, keys, 24, seed=3),
    )
