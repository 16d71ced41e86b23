"""This library, called as a user would: torch tensors where torch is installed, else arrays."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import tvm_attention
from bench.peers.contract import Prepared
from bench.peers.torch_tensors import array_of, tensor_of
from bench.problem import Numbers, Problem, aligned
from tvm_attention.dtypes import numpy_dtype
from tvm_attention.interleaved import Contender
from tvm_attention.threads import launcher

NAME = "ours"


def prepare(problem: Problem, threads: int) -> Prepared:
    """The public call, and the same with a poisoned output for checking."""
    w = problem.workload
    launcher().set_num_threads(threads)
    call = public_call(problem)

    def results() -> tuple[Numbers, ...]:
        out = aligned(problem.shape, numpy_dtype(w.dtype))
        public_call(problem, out=as_caller_has_it(out))()
        return out, _numbers(call())

    source = str(tvm_attention.load(w, num_threads=threads).source)
    return Prepared(Contender(NAME, call), results, source=source)


def prepare_float32(problem: Problem, threads: int) -> Prepared:
    """The same workload with float32 numbers: what 16 bits are to be faster than."""
    arrays = {
        n: getattr(problem, n).astype(numpy_dtype("float32")) for n in ("query", "key", "value")
    }
    workload = replace(problem.workload, dtype="float32")
    return prepare(replace(problem, workload=workload, **arrays), threads)


def public_call(problem: Problem, **out: Any) -> Callable[[], Any]:
    """The call that a user would write for the workload."""
    w = problem.workload
    query, key, value = (as_caller_has_it(x) for x in (problem.query, problem.key, problem.value))
    if w.kv_dtype is not None:
        cache = _cache(problem, key, value)
        return lambda: cache.attend(query, **out)
    options = {n: x for n, x in problem.options.items() if x is not None}
    if "mask" in options:
        options["mask"] = as_caller_has_it(options["mask"])
    if out or w.causal == "bottom_right" or set(options) - {"causal", "mask"}:
        attention = tvm_attention.attention
        return lambda: attention(query, key, value, **options, **out)
    causal, grouped, mask = w.causal is not None, w.group > 1, options.get("mask")
    sdpa = tvm_attention.scaled_dot_product_attention
    return lambda: sdpa(query, key, value, mask, is_causal=causal, enable_gqa=grouped)


def _cache(problem: Problem, key: Any, value: Any) -> Any:
    """Filled to its end, with what the int8 numbers stand for: quantised again, they are the same."""
    w = problem.workload
    assert w.kv_heads is not None
    cache = tvm_attention.KVCache(
        w.batch, w.kv_heads, w.key_length, w.head_dim, w.value_dim, dtype=str(w.kv_dtype), like=key
    )
    cache.append(key, value)
    return cache


def as_caller_has_it(array: Numbers) -> Any:
    """The same memory as a torch tensor, if torch is installed."""
    return array if importlib.util.find_spec("torch") is None else tensor_of(array)


def _numbers(result: Any) -> Numbers:
    return result if importlib.util.find_spec("torch") is None else array_of(result)
