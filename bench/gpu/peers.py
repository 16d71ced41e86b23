"""What a call is timed against: torch's own kernels, FlexAttention, a kernel in Triton."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial
from importlib.util import find_spec
from typing import Any

from tvm_attention.errors import UnsupportedError
from tvm_attention.workload import AttentionWorkload

Call = Callable[[], Any]
Prepare = Callable[[AttentionWorkload, Any, Any, Any], Call]
BACKENDS = {
    "flash": "FLASH_ATTENTION",
    "efficient": "EFFICIENT_ATTENTION",
    "cudnn": "CUDNN_ATTENTION",
    "math": "MATH",
}

COMPILED = ("flex", "triton")  # with their first call


def peers() -> Mapping[str, Prepare]:
    """How each makes a call that returns its result, of (batch, heads, rows, dim) tensors; it raises for
    what it does not serve."""
    found: dict[str, Prepare] = {f"torch {name}": _backend(name) for name in BACKENDS}
    return found | {"flex": _flex, "triton": _triton}


def _backend(name: str) -> Prepare:
    def prepare(w: AttentionWorkload, q: Any, k: Any, v: Any) -> Call:
        import torch
        from torch.nn.attention import SDPBackend, sdpa_kernel

        attend: Any = torch.nn.functional.scaled_dot_product_attention
        backend, causal = getattr(SDPBackend, BACKENDS[name]), w.causal is not None

        def call(key: Any = k, value: Any = v, grouped: bool = w.group > 1) -> Any:
            with torch.no_grad(), sdpa_kernel(backend):
                return attend(q, key, value, is_causal=causal, enable_gqa=grouped)

        if w.group == 1:
            call()
            return call
        try:
            call()
        except RuntimeError:  # some take no groups: keys and values are repeated before
            wide = [x.repeat_interleave(w.group, 1) for x in (k, v)]
            repeated: Call = partial(call, wide[0], wide[1], False)
            repeated()
            return repeated
        return call

    return prepare


def _flex(w: AttentionWorkload, q: Any, k: Any, v: Any) -> Call:
    import torch
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    compiled: Any = torch.compile(flex_attention)
    mask = None
    if w.causal is not None:
        mask = create_block_mask(
            lambda b, h, i, j: i >= j, None, None, w.query_length, w.key_length, device=q.device
        )

    def call() -> Any:
        with torch.no_grad():
            return compiled(q, k, v, block_mask=mask, enable_gqa=w.group > 1)

    return call


def _triton(w: AttentionWorkload, q: Any, k: Any, v: Any) -> Call:
    if find_spec("triton") is None:
        raise UnsupportedError("expected the package triton, got none")
    if w.dtype == "float32" or w.group > 1 or w.query_length == 1:
        raise UnsupportedError("this kernel serves prefill in 16 bits with as many key heads alone")
    from bench.gpu import flash_triton

    scale = 1.0 / math.sqrt(w.head_dim)
    return lambda: flash_triton.attention(q, k, v, w.causal is not None, scale)
