"""torch's own attention sent to ours while routing is on, and to torch's where we do not serve a call.

What is changed is put back exactly. The dispatcher's entry for CPU tensors catches every eager call,
whoever holds the function: torch.nn.functional, a name imported from it, C++. A compiled function keeps
its graph and never comes by there: for the compiler, and only for it, the name in torch.nn.functional
is one that leaves our operator in the graph, and as the compiler watches the name, its change makes it
compile again. The fused forms of nn.MultiheadAttention and nn.TransformerEncoderLayer compute attention
of their own in C++: torch's switch for them is off.
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

from tvm_attention.torch.fallback import forget_what_was_said
from tvm_attention.torch.routed import eager, named, saying_of_weights, torch_operator

_NAME = "scaled_dot_product_attention"


def _another(function: Any) -> Any:
    """The same function, unknown to dynamo, which keeps torch's own whole and looks into others."""
    made = types.FunctionType(
        function.__code__, function.__globals__, function.__name__, function.__defaults__,
        function.__closure__,
    )  # fmt: skip
    made.__kwdefaults__ = function.__kwdefaults__
    return functools.update_wrapper(made, function)


class _Routing:
    """Whether routing is on in this process: by :func:`enable`, or by blocks that have not ended."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._enabled = False
        self._blocks = 0
        self._kernels: Any = None
        # Names of torch.nn.functional: what was there, and what is there since.
        self._replaced: dict[str, tuple[Any, Any]] = {}
        self._fused = True  # torch.backends.mha's switch

    def change(self, *, enabled: bool | None = None, blocks: int = 0) -> None:
        with self._lock:
            self._enabled = self._enabled if enabled is None else enabled
            self._blocks += blocks
            wanted = self._enabled or self._blocks > 0
            if wanted and self._kernels is None:
                self._install()
            elif not wanted and self._kernels is not None:
                self._remove(self._kernels)

    def is_on(self) -> bool:
        return self._kernels is not None

    def _install(self) -> None:
        forget_what_was_said()
        library: Any = torch.library  # without types
        self._kernels = library.Library("aten", "IMPL")
        for key in ("CPU", "AutogradCPU"):  # inference tensors have the first only
            self._kernels.impl(_NAME, eager, key)
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


_routing = _Routing()


def enable() -> None:
    """Send torch's scaled_dot_product_attention on CPU tensors to ours, in the whole process.

    That is torch.nn.functional's, however it was imported, and with it nn.MultiheadAttention (called
    with need_weights=False; with True it computes no such attention), timm, diffusers and others.
    Compiled functions are compiled again. A call that ours does not serve (gradients, dropout, float64,
    more than four axes where it is compiled, ...) is torch's as before, and a FallbackWarning says why,
    once a reason.
    Calling it twice is calling it once.
    """
    _routing.change(enabled=True)


def disable() -> None:
    """Take :func:`enable` back, exactly. Blocks of :func:`enabled` that have not ended stay on."""
    _routing.change(enabled=False)


def is_enabled() -> bool:
    """Whether torch's attention is sent to ours now."""
    return _routing.is_on()


@contextmanager
def enabled() -> Iterator[None]:
    """``with enabled():`` routes as :func:`enable` does, in all threads, until the block ends; blocks
    may be nested and overlap."""
    _routing.change(blocks=1)
    try:
        yield
    finally:
        _routing.change(blocks=-1)
