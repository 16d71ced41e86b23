"""jax.nn.dot_product_attention, compiled by XLA for the processor."""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from bench.peers.contract import Prepared, require, require_room_for_scores
from bench.problem import Problem, additive
from tvm_attention.errors import UnsupportedError
from tvm_attention.interleaved import Contender

THREADS = "NPROC"  # which XLA makes its pool of, when it is first used


def prepare(problem: Problem, threads: int) -> Prepared:
    """It takes and gives (B, L, H, E). Only the first workload of a process can set its threads."""
    require_room_for_scores(problem, "XLA on CPUs")
    require(os.environ.setdefault(THREADS, str(threads)) == str(threads), _set_already(threads))
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    import jax

    arrays = [jax.device_put(x.swapaxes(1, 2)) for x in (problem.query, problem.key, problem.value)]
    mask = problem.mask(natively={"causal"} if problem.workload.causal == "top_left" else ())
    hidden = _hidden(mask)
    causal = problem.workload.causal == "top_left"

    def attention(query: Any, key: Any, value: Any, hidden: dict[str, Any]) -> Any:
        return jax.nn.dot_product_attention(query, key, value, is_causal=causal, **hidden)

    compiled = jax.jit(attention)

    def call() -> Any:
        return compiled(*arrays, hidden).block_until_ready()

    def results() -> tuple[Any, ...]:
        return (np.asarray(call()).swapaxes(1, 2),)

    try:
        call()
    except ValueError as error:
        raise UnsupportedError(f"jax: {str(error).splitlines()[0]}") from error
    return Prepared(Contender("jax", call, pool="jax"), results, layout="B,L,H,E")


def _set_already(threads: int) -> str:
    return f"XLA's pool has {os.environ.get(THREADS)} threads in this process, not {threads}"


def _hidden(mask: Any) -> dict[str, Any]:
    """As mask or bias, which JAX wants of four axes."""
    import jax

    if mask is None:
        return {}
    if mask.dtype == np.bool_:
        return {"mask": jax.device_put(mask)}
    return {"bias": jax.device_put(additive(mask, mask.dtype))}
