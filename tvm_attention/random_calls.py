"""Calls of a workload with numbers drawn at random."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tvm_attention.arrays import NumPyArrays
from tvm_attention.call import Call, Pages
from tvm_attention.dtypes import numpy_dtype
from tvm_attention.kv_cache.pages import opened_pages
from tvm_attention.kv_cache.quantisation import quantise
from tvm_attention.kv_cache.tensors import scales_of
from tvm_attention.operands import geometry
from tvm_attention.options import opened_options
from tvm_attention.workload import AttentionWorkload

PAGE_SIZE = 16  # keys

Inputs = tuple[NDArray[Any], NDArray[Any], NDArray[Any]]


@dataclass(frozen=True, slots=True, eq=False)
class RandomCall:
    """Query, key and value twice: ``arrays`` as kernels of the workload read them, together with ``call``,
    and ``inputs`` (batch, heads, rows, dim), the same numbers as ``reference.attended`` takes them,
    together with ``options``."""

    arrays: Inputs
    call: Call
    inputs: Inputs
    options: dict[str, Any]

    def outputs(self, output: str) -> tuple[NDArray[Any], NDArray[np.float32] | None]:
        """New arrays for a workload's ``output`` and, where that is part of it, the log-sum-exp."""
        sizes = self.call.sizes
        columns = sizes.key_length if output == "weights" else sizes.value_dim
        out = np.empty((*sizes.out_shape[:-1], columns), self.arrays[0].dtype)
        with_lse = output == "attention_and_lse"
        return out, np.empty(sizes.out_shape[:-1], np.float32) if with_lse else None


def random_call(workload: AttentionWorkload, seed: int | None = None) -> RandomCall:
    """A call of exactly this workload: int8 keys and values have a scale a token, pages lie in no order."""
    query, key, value = random_inputs(workload, seed)
    options = random_options(workload, seed)
    sizes = geometry(query.shape, key.shape, value.shape, enable_gqa=True)
    opened = opened_options(NumPyArrays(), sizes, query_dtype=workload.dtype, **options)
    stored_key, stored_value, scales, pages = key, value, None, None
    if workload.kv_dtype is not None:
        (stored_key, key_scales), (stored_value, value_scales) = quantise(key), quantise(value)
        scales = scales_of(key_scales, value_scales)
        # What is compared with is attention over what is stored: rounding to int8 is no error.
        key, value = stored_key * key_scales[..., None], stored_value * value_scales[..., None]
    if workload.paged:
        rng = np.random.default_rng(seed)
        stored_key, stored_value, pages = _in_pages(stored_key, stored_value, rng)
    call = Call.of(sizes, opened, workload.dtype, pages=pages, scales=scales)
    return RandomCall((query, stored_key, stored_value), call, (query, key, value), options)


def _in_pages(
    key: NDArray[Any], value: NDArray[Any], rng: np.random.Generator
) -> tuple[NDArray[Any], NDArray[Any], Pages]:
    batch, heads, rows, _ = key.shape
    each = -(-rows // PAGE_SIZE)
    table = rng.permutation(batch * each).reshape(batch, each)

    def dealt(array: NDArray[Any]) -> NDArray[Any]:
        dim = array.shape[3]
        whole = np.zeros((batch, heads, each * PAGE_SIZE, dim), array.dtype)
        whole[:, :, :rows] = array
        pages = np.empty((batch * each, heads, PAGE_SIZE, dim), array.dtype)
        pages[table] = whole.reshape(batch, heads, each, PAGE_SIZE, dim).swapaxes(1, 2)
        return pages

    return opened_pages(NumPyArrays(), dealt(key), dealt(value), table)


def random_inputs(workload: AttentionWorkload, seed: int | None = None) -> Inputs:
    """Fresh unit-normal query, key and value for a workload, rounded to its dtype."""
    rng = np.random.default_rng(seed)
    w = workload
    assert w.kv_heads is not None
    assert w.value_dim is not None
    shapes = (
        (w.batch, w.query_heads, w.query_length, w.head_dim),
        (w.batch, w.kv_heads, w.key_length, w.head_dim),
        (w.batch, w.kv_heads, w.key_length, w.value_dim),
    )
    dtype = numpy_dtype(w.dtype)
    q, k, v = (rng.standard_normal(s, dtype=np.float32).astype(dtype, copy=False) for s in shapes)
    return q, k, v


def random_options(workload: AttentionWorkload, seed: int | None = None) -> dict[str, Any]:
    """Options of ``reference.attended`` that make a call one of this workload: a fifth of the keys masked,
    slopes, sinks and lengths drawn at random."""
    rng = np.random.default_rng(seed)
    w = workload
    options: dict[str, Any] = {"causal": w.causal, "window": w.window}
    if w.mask is not None:
        rows = 1 if w.mask_per_key else w.query_length
        seen = rng.random((w.batch, 1, rows, w.key_length)) < 0.8
        mask = seen
        if w.mask != "bool":
            mask = np.where(seen, rng.standard_normal(seen.shape), -np.inf).astype(
                numpy_dtype(w.mask)
            )
        if not (w.mask_dense or w.mask_per_key):
            mask = np.asfortranarray(mask)
        options["mask"] = mask
    if w.softcap:
        options["softcap"] = 20.0
    if w.alibi:
        options["alibi_slopes"] = 2.0 ** -np.linspace(1, 8, w.query_heads, dtype=np.float32)
    if w.sinks:
        options["sinks"] = rng.standard_normal(w.query_heads).astype(np.float32)
    if w.ragged:
        options["kv_lengths"] = rng.integers(w.key_length // 2, w.key_length + 1, w.batch)
    return options
