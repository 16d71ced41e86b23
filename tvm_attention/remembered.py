"""Calls seen before, so that a repeated one costs two microseconds and not the thirty of its checks.

A call is remembered by everything that decides how it runs but the addresses. What may change between
two calls of one signature (the device, grad mode, the number of threads) is looked at again each time.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from tvm_attention import environment
from tvm_attention.arrays import Shape
from tvm_attention.kernel import PreparedCall
from tvm_attention.threads import launcher

Options = tuple[bool, float | None, bool]
"""is_causal, scale, enable_gqa."""

Run = Callable[[Any, Any, Any, bool, "float | None", bool], Any]
"""query, key, value, options -> out, or None when the checks must run."""

_MOST_CALLS = 4096


@dataclass(slots=True)
class _Entry:
    signature: Any
    prepared: PreparedCall
    shape: Shape
    like_query: bool  # the result has the query's shape, and so its layout
    threads: int  # 0 where the caller's pool has no say


_NONE: Any = _Entry(None, None, (), False, 0)  # type: ignore[arg-type]


class RememberedCalls:
    """The remembered calls of one kind of array. ``run`` is one long function: a call of another costs a
    tenth of a microsecond."""

    def __init__(self, signature: Callable[..., Any]) -> None:
        self.signature = signature
        self.entries: dict[Any, _Entry] = {}
        self.last: _Entry = _NONE

    def add(self, inputs: tuple[Any, Any, Any], options: Options, entry: _Entry) -> None:
        if len(self.entries) >= _MOST_CALLS:
            self.entries.clear()
        entry.signature = self.signature(*inputs, *options)
        self.entries[entry.signature] = entry

    def forget(self) -> None:
        self.entries.clear()
        self.last = _NONE


def _torch_signature(
    query: Any, key: Any, value: Any, is_causal: bool, scale: float | None, enable_gqa: bool
) -> Any:
    shapes = (
        query.shape, key.shape, value.shape, query.dtype, key.dtype, value.dtype,
        is_causal, scale, enable_gqa,
    )  # fmt: skip
    if query.is_contiguous() and key.is_contiguous() and value.is_contiguous():
        return shapes
    return shapes, query.stride(), key.stride(), value.stride()


def _torch_run(calls: RememberedCalls) -> Run:
    torch = sys.modules["torch"]
    tensor, empty, empty_like = torch.Tensor, torch.empty, torch.empty_like
    is_grad_enabled, entries, pool = torch.is_grad_enabled, calls.entries, launcher()

    def run(
        query: Any, key: Any, value: Any, is_causal: bool, scale: float | None, enable_gqa: bool
    ) -> Any:
        if type(key) is not tensor or type(value) is not tensor:
            return None
        signature: Any = (
            query.shape, key.shape, value.shape, query.dtype, key.dtype, value.dtype,
            is_causal, scale, enable_gqa,
        )  # fmt: skip
        if not (query.is_contiguous() and key.is_contiguous() and value.is_contiguous()):
            signature = (signature, query.stride(), key.stride(), value.stride())
        entry = calls.last
        if entry.signature != signature:  # comparing with the last one is cheaper than hashing
            entry = entries.get(signature, _NONE)
            if entry is _NONE:
                return None
            calls.last = entry
        if not (query.is_cpu and key.is_cpu and value.is_cpu):
            return None
        if is_grad_enabled() and (query.requires_grad or key.requires_grad or value.requires_grad):
            return None
        if entry.threads and pool.max_threads() != entry.threads:
            return None
        out = empty_like(query) if entry.like_query else empty(entry.shape)
        entry.prepared.run(query.data_ptr(), key.data_ptr(), value.data_ptr(), out.data_ptr())
        return out

    return run


def _numpy_signature(
    query: Any, key: Any, value: Any, is_causal: bool, scale: float | None, enable_gqa: bool
) -> Any:
    return (
        query.shape, query.strides, key.shape, key.strides, value.shape, value.strides,
        query.dtype, key.dtype, value.dtype, is_causal, scale, enable_gqa,
    )  # fmt: skip


def _numpy_run(calls: RememberedCalls) -> Run:
    pool = launcher()

    def run(query: Any, key: Any, value: Any, *options: Any) -> Any:
        if type(key) is not np.ndarray or type(value) is not np.ndarray:
            return None
        entry = calls.entries.get(_numpy_signature(query, key, value, *options), _NONE)
        if entry is _NONE or (entry.threads and pool.max_threads() != entry.threads):
            return None
        out = np.empty_like(query) if entry.like_query else np.empty(entry.shape, np.float32)
        arrays = (query, key, value, out)
        entry.prepared.run(*(x.__array_interface__["data"][0] for x in arrays))
        return out

    return run


remembered_runs: dict[type, Run] = {}
"""How a remembered call on arrays of a type runs."""

_calls: dict[type, RememberedCalls] = {}


def remember(
    inputs: tuple[Any, Any, Any], options: Options, prepared: PreparedCall, shape: Shape
) -> None:
    """Remember a call on NumPy arrays or torch tensors; those on other kinds are not."""
    array = type(inputs[0])
    torch = sys.modules.get("torch")
    is_torch = torch is not None and array is torch.Tensor
    if not (is_torch or array is np.ndarray) or any(type(x) is not array for x in inputs):
        return
    if array not in _calls:
        calls = RememberedCalls(_torch_signature if is_torch else _numpy_signature)
        remembered_runs[array] = _torch_run(calls) if is_torch else _numpy_run(calls)
        _calls[array] = calls
    threads = 0 if environment.num_threads() else prepared.threads
    like_query = tuple(inputs[0].shape) == shape
    _calls[array].add(inputs, options, _Entry(None, prepared, shape, like_query, threads))


def forget_calls() -> None:
    """Drop all remembered calls, so that new tuning records are seen."""
    for calls in _calls.values():
        calls.forget()
