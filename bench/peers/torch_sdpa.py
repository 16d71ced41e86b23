"""torch.nn.functional.scaled_dot_product_attention: its own choice of backend, or one of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from bench.peers.contract import Prepared, require, require_room_for_scores
from bench.peers.torch_tensors import array_of, tensor_of
from bench.problem import Problem
from tvm_attention.errors import UnsupportedError
from tvm_attention.interleaved import Contender

if TYPE_CHECKING:
    import torch

FLASH, MATH = "flash", "math"


def prepare(problem: Problem, threads: int) -> Prepared:
    """As torch chooses. It allocates its result itself, so there is no output to poison."""
    return _prepared("torch", _call(problem, threads))


def prepare_flash(problem: Problem, threads: int) -> Prepared:
    """The fused kernel, where it is not torch's own choice."""
    return _of_backend(problem, threads, FLASH)


def prepare_math(problem: Problem, threads: int) -> Prepared:
    """Matrix product, softmax, matrix product, where it is not torch's own choice."""
    require_room_for_scores(problem, "torch's math backend")
    return _of_backend(problem, threads, MATH)


def _prepared(name: str, call: Callable[[], torch.Tensor]) -> Prepared:
    return Prepared(Contender(name, call), lambda: (array_of(call()),))


def _call(problem: Problem, threads: int) -> Callable[[], torch.Tensor]:
    import torch
    from torch.nn.functional import scaled_dot_product_attention

    torch.set_num_threads(threads)
    tensors, options = _arguments(problem)

    def call() -> torch.Tensor:
        return scaled_dot_product_attention(*tensors, **options)

    return call


def _arguments(problem: Problem) -> tuple[list[Any], dict[str, Any]]:
    """is_causal alone; whatever else hides keys is a mask, as it and is_causal exclude each other."""
    w = problem.workload
    tensors = [tensor_of(x) for x in (problem.query, problem.key, problem.value)]
    top_left = w.causal == "top_left" or (w.causal and w.query_length == w.key_length)
    alone = bool(top_left) and w.window is None and w.mask is None and not w.ragged
    options: dict[str, Any] = {"is_causal": alone, "enable_gqa": w.group > 1}
    mask = None if alone else problem.mask()
    if mask is not None:
        options["attn_mask"] = tensor_of(mask)
    return tensors, options


def _of_backend(problem: Problem, threads: int, name: str) -> Prepared:
    require(_chosen(problem) != name, f"torch chooses its {name} backend itself here")
    call = _call(problem, threads)
    allow = _switches()

    def alone() -> torch.Tensor:
        # Switched by every call, so that torch's own choice stays free; half a microsecond.
        for backend, switch in allow.items():
            switch(backend == name)
        try:
            return call()
        finally:
            for switch in allow.values():
                switch(True)

    try:
        alone()
    except RuntimeError as error:
        raise UnsupportedError(f"torch's {name} backend: {str(error).splitlines()[0]}") from error
    return _prepared(f"torch-{name}", alone)


def _switches() -> dict[str, Callable[[bool], None]]:
    """What torch.nn.attention.sdpa_kernel switches, without the time that its context takes."""
    from torch.backends import cuda

    return {FLASH: cuda.enable_flash_sdp, MATH: cuda.enable_math_sdp}


def _chosen(problem: Problem) -> str:
    import torch
    from torch.nn.attention import SDPBackend

    (query, key, value), options = _arguments(problem)
    given = {k: v for k, v in options.items() if k != "attn_mask"}
    chosen = torch._fused_sdp_choice(query, key, value, options.get("attn_mask"), **given)
    return FLASH if SDPBackend(chosen) == SDPBackend.FLASH_ATTENTION else MATH
