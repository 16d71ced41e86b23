"""torch's own attention sent to ours while routing is on, and to torch's where we do not serve a call.

What is changed is put back exactly. The dispatcher's entries for CPU tensors, and if that is asked for
those of GPUs, catch every eager call, whoever holds the function: torch.nn.functional, a name imported
from it, C++. A compiled function keeps its graph and never comes by there: for the compiler, and only for
it, the name in torch.nn.functional is one that leaves our operator in the graph, and as the compiler
watches the name, its change makes it compile again. The fused forms of nn.MultiheadAttention and
nn.TransformerEncoderLayer compute attention of their own in C++: torch's switch for them is off.
"""

from __future__ import annotations

import functools
import threading
import types
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.nn import functional as torch_functional

from tvm_attention.torch import fallback
from tvm_attention.torch.routed import eager, named, saying_of_weights, torch_operator

_NAME = "scaled_dot_product_attention"
_CPU, _CUDA = (
    ("CPU", "AutogradCPU"),
    ("CUDA", "AutogradCUDA"),
)  # inference tensors have the first only


def _another(function: Any) -> Any:
    """The same function, unknown to dynamo, which keeps torch's own whole and looks into others."""
    made = types.FunctionType(
        function.__code__, function.__globals__, function.__name__, function.__defaults__,
        function.__closure__,
    )  # fmt: skip
    made.__kwdefaults__ = function.__kwdefaults__
    return functools.update_wrapper(made, function)


class _Routing:
    """Whether routing is on in this process, and for GPUs: by :func:`enable`, or by blocks that have not
    ended."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._enabled = self._enabled_cuda = False
        self._blocks = self._blocks_cuda = 0
        self._kernels: Any = None
        self._kernels_cuda: Any = None
        # Names of torch.nn.functional: what was there, and what is there since.
        self._replaced: dict[str, tuple[Any, Any]] = {}
        self._fused = True  # torch.backends.mha's switch

    def change(self, *, enabled: bool | None = None, blocks: int = 0, cuda: bool = False) -> None:
        with self._lock:
            if enabled is not None:
                self._enabled, self._enabled_cuda = enabled, enabled and cuda
            self._blocks += blocks
            self._blocks_cuda += blocks * cuda
            wanted = self._enabled or self._blocks > 0
            if wanted and self._kernels is None:
                self._install()
            elif not wanted and self._kernels is not None:
                self._remove(self._kernels)
            self._change_cuda(self._enabled_cuda or self._blocks_cuda > 0)

    def _change_cuda(self, wanted: bool) -> None:
        """The entries for tensors on GPUs, in or out."""
        if wanted == (self._kernels_cuda is not None):
            return
        if wanted:
            self._kernels_cuda = _entries(_CUDA)
        else:
            self._kernels_cuda._destroy()
            self._kernels_cuda = None
        torch_operator._dispatch_cache.clear()
        fallback.served = ("cpu", "cuda") if wanted else ("cpu",)

    def is_on(self) -> bool:
        return self._kernels is not None

    def _install(self) -> None:
        fallback.forget_what_was_said()
        self._kernels = _entries(_CPU)
        torch_operator._dispatch_cache.clear()  # compilers' copy of the entries
        multi_head = torch_functional.multi_head_attention_forward
        self._replace(_NAME, named)
        self._replace(multi_head.__name__, saying_of_weights(_another(multi_head)))
        self._fused = torch.backends.mha.get_fastpath_enabled()
        torch.backends.mha.set_fastpath_enabled(False)

    def _remove(self, kernels: Any) -> None:
        kernels._destroy()
        torch_operator._dispatch_cache.clear()
        self._kernels = None
        # What someone has put there after us stays.
        for name, (before, since) in self._replaced.items():
            if getattr(torch_functional, name) is since:
                setattr(torch_functional, name, before)
        self._replaced.clear()
        if not torch.backends.mha.get_fastpath_enabled():
            torch.backends.mha.set_fastpath_enabled(self._fused)

    def _replace(self, name: str, by: Any) -> None:
        self._replaced[name] = getattr(torch_functional, name), by
        setattr(torch_functional, name, by)


def _entries(keys: tuple[str, ...]) -> Any:
    """Ours in the dispatcher under some of its keys, until the library that is returned goes."""
    library: Any = torch.library  # without types
    made = library.Library("aten", "IMPL")
    for key in keys:
        made.impl(_NAME, eager, key)
    return made


_routing = _Routing()


def enable(*, cuda: bool = False) -> None:
    """Send torch's scaled_dot_product_attention on CPU tensors to ours, in the whole process; with
    ``cuda`` also on tensors of NVIDIA's GPUs.

    That is torch.nn.functional's, however it was imported, and with it nn.MultiheadAttention (called
    with need_weights=False; with True it computes no such attention), timm, diffusers and others.
    Compiled functions are compiled again. A call that ours does not serve (gradients, dropout, float64,
    more than four axes where it is compiled, ...) is torch's as before, and a FallbackWarning says why,
    once a reason. Calling it twice is calling it once; the last one says whether GPUs are routed.
    """
    _routing.change(enabled=True, cuda=cuda)


def disable() -> None:
    """Take :func:`enable` back, exactly. Blocks of :func:`enabled` that have not ended stay on."""
    _routing.change(enabled=False)


def is_enabled() -> bool:
    """Whether torch's attention is sent to ours now."""
    return _routing.is_on()


@contextmanager
def enabled(*, cuda: bool = False) -> Iterator[None]:
    """``with enabled():`` routes as :func:`enable` does, in all threads, until the block ends; blocks
    may be nested and overlap."""
    _routing.change(blocks=1, cuda=cuda)
    try:
        yield
    finally:
        _routing.change(blocks=-1, cuda=cuda)
