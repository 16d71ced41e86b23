"""torch tensors. torch is never imported here: it is there if a tensor is."""

from __future__ import annotations

import sys
from typing import Any

from numpy.typing import NDArray

from tvm_attention.arrays.kind import Shape, is_dense, mixed_kinds
from tvm_attention.errors import UnsupportedError


class TorchTensors:
    name = "torch tensors"

    def __init__(self) -> None:
        self._torch = sys.modules["torch"]
        self._place = self._torch.device("cpu")

    def opened(self, name: str, array: Any) -> Any:
        torch = self._torch
        if not isinstance(array, torch.Tensor):
            raise mixed_kinds(name, self.name, array)
        if array.layout != torch.strided or array.is_nested or array.device != self._place:
            raise UnsupportedError(
                f"{name}: expected a dense tensor on {self._on()}, got {_layout(array)} on "
                f"{array.device}; convert it with .to_dense() or {self._conversion()}"
            )
        if torch.jit.is_tracing():  # it would record how the result is allocated, and no more
            raise UnsupportedError(
                f"{name}: expected a call outside of torch.jit.trace, which does not see what kernels "
                f"compute; trace without the attention"
            )
        if array.requires_grad and torch.is_grad_enabled():
            raise UnsupportedError(
                f"{name} requires grad, and only the forward pass is computed; call under "
                f"torch.no_grad() or detach it"
            )
        if torch.autograd.forward_ad.unpack_dual(array).tangent is not None:
            raise UnsupportedError(
                f"{name} has a tangent, and forward-mode derivatives are not computed; pass the primal "
                f"of torch.autograd.forward_ad.unpack_dual"
            )
        if array.is_neg():  # such as x.conj().imag: its memory holds the negated numbers
            raise UnsupportedError(
                f"{name}: expected a tensor whose memory holds its numbers, got one with a pending "
                f"negation; call .resolve_neg()"
            )
        self.address(array)  # raises where there is none
        return array

    def shape(self, array: Any) -> Shape:
        return tuple(array.shape)

    def strides(self, array: Any) -> Shape:
        return tuple(array.stride())

    def has_whole_strides(self, array: Any) -> bool:
        return True

    def dtype(self, array: Any) -> str:
        return str(array.dtype).removeprefix("torch.")

    def address(self, array: Any) -> int:
        try:
            address: int = array.data_ptr()
        except RuntimeError:  # inside torch.func.vmap, for one
            address = 0
        if not address and array.numel():
            raise UnsupportedError(
                f"expected a tensor with memory, got a {type(array).__name__} without, as in "
                f"transforms of torch.func and under FakeTensorMode; call outside of them"
            )
        return address

    def dense(self, array: Any) -> Any:
        return array.contiguous()

    def swapped_heads(self, array: Any) -> Any:
        return array.transpose(1, 2)

    def expanded(self, array: Any, shape: Shape) -> Any:
        return array.expand(shape)

    def empty(self, shape: Shape, like: Any, dtype: str | None = None) -> Any:
        torch = self._torch
        made_of = like.dtype if dtype is None else getattr(torch, dtype)
        if shape == tuple(like.shape):
            made = torch.empty_like(like.detach(), dtype=made_of)
            if is_dense(shape, self.strides(made)):
                return made
        # Not torch.empty: the caller may have set a default device.
        return like.new_empty(shape, dtype=made_of)

    def numbers(self, array: Any) -> NDArray[Any]:
        torch = self._torch
        plain = array.detach()
        numbers: NDArray[Any] = (plain.float() if plain.dtype == torch.bfloat16 else plain).numpy()
        return numbers

    def own_kind(self, result: Any, query: Any) -> Any:
        return result

    def _on(self) -> str:
        return "the cpu"

    def _conversion(self) -> str:
        return ".cpu()"


def _layout(tensor: Any) -> str:
    return "a nested tensor" if tensor.is_nested else str(tensor.layout)
