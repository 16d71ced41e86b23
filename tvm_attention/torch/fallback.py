"""Calls that stay torch's while routing is on: which, and saying so once for each reason."""

from __future__ import annotations

import re
import sys
import threading
import warnings

import torch

from tvm_attention.errors import FallbackWarning
from tvm_attention.workload import MAX_HEAD_DIM

_DTYPES = (torch.float32, torch.float16, torch.bfloat16)
_COMPILED_UNDER_ANOTHER_NAME = (
    "a compiled function holds torch's function under a name of its own, where the compiler does not "
    "see it change; call it as torch.nn.functional.scaled_dot_product_attention"
)
GRADIENT = "the call needs a gradient, and only the forward pass is computed; use torch.no_grad()"
DROPOUT = "the call has dropout, and only inference is computed; put the model in eval() mode"
WEIGHTS = (
    "torch.nn.MultiheadAttention forms the weights itself when it is asked for them; call it with "
    "need_weights=False"
)

_said: set[str] = set()
_lock = threading.Lock()
served: tuple[str, ...] = ("cpu",)  # the devices whose calls are routed


def needs_gradient(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor | None
) -> bool:
    if not torch.is_grad_enabled():
        return False
    if mask is not None and mask.requires_grad:
        return True
    return query.requires_grad or key.requires_grad or value.requires_grad


def traced_refusal(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None,
    dropout: float,
) -> str | None:
    """Why our operator would not take a call that is being compiled, None if it does. Traced by dynamo:
    plain questions to shapes and types only."""
    if needs_gradient(query, key, value, mask):
        return GRADIENT
    if dropout > 0.0:
        return DROPOUT
    for x in (query, key, value, mask):
        if x is None:
            continue
        if x.device.type not in served or x.layout != torch.strided or x.is_nested:
            return elsewhere(x.device.type, "dense tensors")
    if query.dtype not in _DTYPES:
        return f"dtype: expected float32, float16 or bfloat16, got {query.dtype}"
    if not query.ndim == key.ndim == value.ndim or not 2 <= query.ndim <= 4:
        return f"expected 2 to 4 axes alike, got {query.ndim}, {key.ndim} and {value.ndim}"
    if max(query.shape[-1], value.shape[-1]) > MAX_HEAD_DIM:
        return f"expected a last axis of at most {MAX_HEAD_DIM}, got {query.shape[-1]}"
    if mask is not None and mask.dtype not in (torch.bool, torch.float32, query.dtype):
        return f"attn_mask: expected bool, float32 or the query's dtype, got {mask.dtype}"
    return None


def elsewhere(device: str, what: str = "tensors") -> str:
    """The reason for a call on a device that is not routed."""
    more = "; enable(cuda=True) sends those to kernels for GPUs" if device == "cuda" else ""
    return f"expected {what} on the {' or '.join(served)}, got one on {device}{more}"


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def say_at_compilation(reason: str) -> None:
    """As :func:`say_once`; dynamo calls it while it compiles and keeps no trace of it."""
    say_once(reason)


def no_plain_tensors() -> str:
    """The reason for tensors that stand for others. If they are a compiler's, it has been said why they
    come to torch ("": no more to say), or the function compiled is held under another name."""
    return "" if _said else _COMPILED_UNDER_ANOTHER_NAME


def say_once(reason: str) -> None:
    """Warn of calls that stay torch's; of reasons that differ in numbers only, the first is said."""
    if not reason or reason in _said:  # of every step of a training
        return
    kind = re.sub(r"\d+(, \d+)*", "#", reason)
    with _lock:
        if kind in _said:
            return
        _said.update((kind, reason))
    said = f"torch computes this attention itself: {reason}"
    warnings.warn(said, FallbackWarning, stacklevel=_to_the_caller())


def _to_the_caller() -> int:
    """The stack level, seen from :func:`say_once`, of the first frame that is not of this package."""
    level, frame = 1, sys._getframe(1)
    while frame.f_back and frame.f_globals.get("__name__", "").startswith("tvm_attention.torch."):
        level, frame = level + 1, frame.f_back
    return level


def forget_what_was_said() -> None:
    with _lock:
        _said.clear()
