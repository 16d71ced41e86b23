"""This library, called as a user would: torch tensors where torch is installed, else arrays."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

import tvm_attention
from bench.peers.contract import Prepared
from bench.problem import Float32, Problem, aligned
from tvm_attention.interleaved import Contender
from tvm_attention.threads import launcher

NAME = "ours"


def prepare(problem: Problem, threads: int) -> Prepared:
    """The public call, and the kernel it runs with a poisoned output for checking."""
    w = problem.workload
    launcher().set_num_threads(threads)
    kernel = tvm_attention.load(w, num_threads=threads)
    query, key, value = (as_caller_has_it(x) for x in (problem.query, problem.key, problem.value))
    call = (
        partial(kernel, query, key, value)
        if w.causal == "bottom_right"  # which the public call has no argument for
        else public_call(problem, query, key, value)
    )

    def results() -> tuple[Float32, ...]:
        out = aligned(problem.shape)
        kernel(query, key, value, out=as_caller_has_it(out))
        return out, np.asarray(call())

    return Prepared(Contender(NAME, call), results, source=str(kernel.source))


def public_call(problem: Problem, query: Any, key: Any, value: Any) -> Callable[[], Any]:
    """scaled_dot_product_attention with the workload's options."""
    attention = tvm_attention.scaled_dot_product_attention
    causal, grouped = problem.workload.causal is not None, problem.workload.group > 1
    return lambda: attention(query, key, value, is_causal=causal, enable_gqa=grouped)


def as_caller_has_it(array: Float32) -> Any:
    """The same memory as a torch tensor, if torch is installed."""
    if importlib.util.find_spec("torch") is None:
        return array
    import torch

    return torch.from_numpy(array)
