"""torch's FlexAttention, compiled by torch.compile for the very shapes; needs a C++ compiler."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from typing import Any

from bench.peers.contract import Prepared, require_room_for_mask
from bench.peers.torch_tensors import array_of, tensor_of
from bench.problem import Problem
from tvm_attention.errors import UnsupportedError
from tvm_attention.interleaved import Contender

COMPILERS = ("g++", "clang++", "c++")
Modifier = Callable[[Any, Any, Any, Any, Any], Any]


def missing() -> str | None:
    """The compiler that code for the processor is compiled by."""
    if any(map(shutil.which, COMPILERS)):
        return None
    return f"not installed: a C++ compiler ({', '.join(COMPILERS)})"


def prepare(problem: Problem, threads: int) -> Prepared:
    """What a place hides is a block mask, whose hidden blocks are skipped; masks that are read modify
    scores. Compiling takes some twenty seconds a workload, once a machine, and is not timed."""
    import torch
    from torch.nn.attention.flex_attention import flex_attention

    require_room_for_mask(problem, "FlexAttention")
    torch.set_num_threads(threads)
    torch._dynamo.reset()  # its cache of one function has few places
    compiled: Callable[..., Any] = torch.compile(flex_attention, dynamic=False)
    tensors = [tensor_of(x) for x in (problem.query, problem.key, problem.value)]
    options = {
        "score_mod": _score_modifier(problem),
        "block_mask": _block_mask(problem),
        "enable_gqa": problem.workload.group > 1,
    }

    def call() -> Any:
        with torch.no_grad():
            return compiled(*tensors, **options)

    try:
        call()
    except Exception as error:  # torch.compile raises what its parts raise
        reason = str(error).strip().splitlines()[:1] or [type(error).__name__]
        raise UnsupportedError(f"FlexAttention on CPUs: {reason[0]}") from error
    return Prepared(Contender("flex", call, pool="inductor"), lambda: (array_of(call()),))


def _score_modifier(problem: Problem) -> Modifier | None:
    mask = problem.options.get("mask")
    if mask is None:
        return None
    import torch

    given = tensor_of(mask).expand(problem.workload.batch, 1, *problem.scores[2:])
    if given.dtype == torch.bool:
        return lambda score, b, h, q, k: torch.where(given[b, 0, q, k], score, -float("inf"))
    return lambda score, b, h, q, k: score + given[b, 0, q, k]


def _block_mask(problem: Problem) -> Any:
    """None where no place hides anything."""
    from torch.nn.attention.flex_attention import create_block_mask

    if all(problem.options.get(n) is None for n in ("causal", "window", "kv_lengths")):
        return None
    by_place = _by_place(problem)
    batch = problem.workload.batch if problem.workload.ragged else None
    rows, keys = problem.scores[2:]
    return create_block_mask(by_place, batch, None, rows, keys, device="cpu")


def _by_place(problem: Problem) -> Callable[[Any, Any, Any, Any], Any]:
    """Computed, not read: causal, a window, lengths."""
    import torch

    w = problem.workload
    offset = 0 if w.causal == "top_left" else w.key_length - w.query_length
    left, right = w.window or (-1, -1)
    lengths = problem.options.get("kv_lengths")
    ends = None if lengths is None else torch.as_tensor(lengths)

    def seen(b: Any, h: Any, q: Any, k: Any) -> Any:
        own = q + offset if ends is None or w.causal == "top_left" else q + ends[b] - w.query_length
        found = k >= 0
        if w.causal:
            found = found & (k <= own)
        if left >= 0:
            found = found & (k >= own - left)
        if right >= 0:
            found = found & (k <= own + right)
        return found if ends is None else found & (k < ends[b])

    return seen
