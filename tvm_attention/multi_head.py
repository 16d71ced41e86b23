"""Multi-head attention with its projections: a self- or cross-attention layer run whole."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from tvm_attention.arrays import ArrayKind, NumPyArrays, TorchCudaTensors, TorchTensors
from tvm_attention.cuda.kinds import call_kind
from tvm_attention.errors import InvalidTypeError, InvalidValueError, UnsupportedError
from tvm_attention.functional import attention
from tvm_attention.workload import DTYPES

_PARTS = ("query", "key", "value", "output")


class MultiHeadAttention:
    """MultiHead(Q, K, V) = Concat(head_1, ..., head_h) W_O^T + b_O with head_i = Attention(Q W_Q_i^T + b_Q_i,
    K W_K_i^T + b_K_i, V W_V_i^T + b_V_i) (Vaswani et al., "Attention Is All You Need", 2017), weights
    being (out features, in features) as torch.nn.Linear keeps them.

    ``query_weight`` (num_heads * head_dim, Eq), ``key_weight`` (kv_heads * head_dim, Ek), ``value_weight``
    (kv_heads * value_dim, Ev) and ``output_weight`` (Eo, num_heads * value_dim); each bias as long as its
    weight, or None. kv_heads, which divides num_heads, and the dims follow from the shapes. NumPy
    arrays or torch tensors, on the cpu or one GPU, all of one dtype, float32, float16 or bfloat16; they are
    kept, not copied. The library of the arrays computes the projections (NumPy's of half precision in
    float32).

    Raises InvalidValueError, InvalidTypeError or UnsupportedError for weights that do not fit.
    """

    def __init__(
        self,
        query_weight: Any,
        key_weight: Any,
        value_weight: Any,
        output_weight: Any,
        *,
        num_heads: int,
        query_bias: Any = None,
        key_bias: Any = None,
        value_bias: Any = None,
        output_bias: Any = None,
        batch_first: bool = True,
    ) -> None:
        if isinstance(num_heads, bool) or not isinstance(num_heads, int):
            raise InvalidTypeError(f"num_heads: expected an int, got {num_heads!r}")
        self._kind = _weights_kind(query_weight)
        weights = (query_weight, key_weight, value_weight, output_weight)
        biases = (query_bias, key_bias, value_bias, output_bias)
        self._weights = dict(zip(_PARTS, weights, strict=True))
        self._biases = dict(zip(_PARTS, biases, strict=True))
        self._check_arrays()
        self.num_heads, self.batch_first = num_heads, batch_first
        rows = {name: self._kind.shape(w)[0] for name, w in self._weights.items()}
        self.head_dim = _divided("query_weight: rows", rows["query"], "num_heads", num_heads)
        self.kv_heads = _divided("key_weight: rows", rows["key"], "head_dim", self.head_dim)
        _divided("num_heads", num_heads, "kv_heads", self.kv_heads)
        self.value_dim = _divided("value_weight: rows", rows["value"], "kv_heads", self.kv_heads)
        columns = self._kind.shape(output_weight)[1]
        if columns != num_heads * self.value_dim:
            raise InvalidValueError(
                f"output_weight: expected {num_heads * self.value_dim} columns, num_heads times "
                f"value_dim, got {columns}"
            )

    @classmethod
    def from_torch(cls, module: Any) -> MultiHeadAttention:
        """The layer of a torch.nn.MultiheadAttention, whose parameters it shares, ``batch_first`` included.

        Raises InvalidTypeError for another module, UnsupportedError for one with add_bias_kv or
        add_zero_attn, and for one that would drop out, being in training mode.
        """
        torch = sys.modules.get("torch")
        if torch is None or not isinstance(module, torch.nn.MultiheadAttention):
            raise InvalidTypeError(
                f"module: expected a torch.nn.MultiheadAttention, got {type(module).__qualname__}"
            )
        if module.bias_k is not None or module.bias_v is not None or module.add_zero_attn:
            raise UnsupportedError(
                "module: expected one without add_bias_kv and add_zero_attn, got one that appends to "
                "the keys; append to its inputs instead"
            )
        if module.training and module.dropout > 0:
            raise UnsupportedError(
                f"module: expected one that does not drop out, this library computes inference only, "
                f"got dropout={module.dropout} in training mode; call .eval() first"
            )
        if module.in_proj_weight is not None:
            weights = module.in_proj_weight.detach().chunk(3)
        else:
            weights = (module.q_proj_weight, module.k_proj_weight, module.v_proj_weight)
        biases = (None,) * 3 if module.in_proj_bias is None else module.in_proj_bias.chunk(3)
        last = module.out_proj
        parts = (*weights, last.weight, *biases, last.bias)
        q, k, v, o, bq, bk, bv, bo = (None if x is None else x.detach() for x in parts)
        return cls(
            q, k, v, o, num_heads=module.num_heads, query_bias=bq, key_bias=bk, value_bias=bv,
            output_bias=bo, batch_first=module.batch_first,
        )  # fmt: skip

    def __call__(
        self,
        query: Any,
        key: Any = None,
        value: Any = None,
        *,
        return_weights: bool = False,
        **options: Any,
    ) -> Any:
        """The layer's output (B, L, Eo) for query (B, L, Eq), key (B, S, Ek) and value (B, S, Ev).

        Self-attention without ``key``, which defaults to the query, and ``value``, which defaults to the
        key. With batch_first=False, (L, B, E) each; also (L, E) without a batch. ``options`` are those of
        :func:`tvm_attention.attention`: mask, causal, window, softcap, alibi_slopes, sinks, kv_lengths
        and scale. A mask broadcasts to (B, num_heads, L, S), and True means attend, where torch's module
        takes True to mean the opposite. With ``return_weights`` the softmax rows (B, num_heads, L, S), not
        averaged over heads, follow the result.

        Raises InvalidValueError, InvalidTypeError or UnsupportedError.
        """
        refused = {"layout", "out", "return_lse"} & set(options)
        if refused:
            raise InvalidTypeError(f"options: {sorted(refused)} are none of a layer")
        key = query if key is None else key
        value = key if value is None else value
        batched = self._check_inputs(query, key, value)
        heads = {"query": self.num_heads, "key": self.kv_heads, "value": self.kv_heads}
        split = []
        for name, array in (("query", query), ("key", key), ("value", value)):
            rows = self._projected(name, array if batched else array[None])
            rows = rows.reshape(*rows.shape[:2], heads[name], -1)
            split.append(rows if self.batch_first or not batched else rows.swapaxes(0, 1))
        done = attention(*split, layout="bshd", return_weights=return_weights, **options)
        attended, weights = done if return_weights else (done, None)
        joined = attended.reshape(*attended.shape[:2], self.num_heads * self.value_dim)
        if batched and not self.batch_first:
            joined = joined.swapaxes(0, 1)
        result = self._projected("output", joined)
        if not batched:
            result, weights = result[0], None if weights is None else weights[0]
        return (result, weights) if return_weights else result

    def _projected(self, part: str, rows: Any) -> Any:
        """rows weight^T + bias, by the array library."""
        weight, bias = self._weights[part], self._biases[part]
        if isinstance(self._kind, TorchTensors):
            return sys.modules["torch"].nn.functional.linear(rows, weight, bias)
        # NumPy would add up products of half precision in that.
        wide = rows.astype(np.float32) @ weight.astype(np.float32, copy=False).T
        if bias is not None:
            wide += bias
        return wide.astype(rows.dtype, copy=False)

    def _check_arrays(self) -> None:
        """All arrays are of one kind and dtype, weights have two axes and biases fit them."""
        kind, found = self._kind, set()
        for name, weight in self._weights.items():
            shape, bias = kind.shape(kind.opened(f"{name}_weight", weight)), self._biases[name]
            if len(shape) != 2 or 0 in shape:
                raise InvalidValueError(
                    f"{name}_weight: expected (out features, in features), got {shape}"
                )
            found.add(kind.dtype(weight))
            if bias is None:
                continue
            if kind.shape(kind.opened(f"{name}_bias", bias)) != shape[:1]:
                raise InvalidValueError(
                    f"{name}_bias: expected shape {shape[:1]}, got {kind.shape(bias)}"
                )
            found.add(kind.dtype(bias))
        if len(found) > 1 or not found <= set(DTYPES):
            raise InvalidTypeError(
                f"weights and biases: expected one dtype, {' or '.join(DTYPES)}, got {sorted(found)}"
            )
        self.dtype = found.pop()

    def _check_inputs(self, *arrays: Any) -> bool:
        """Whether the inputs have a batch axis, once they are known to fit."""
        kind, axes = self._kind, set()
        for name, array in zip(_PARTS[:3], arrays, strict=True):
            shape = kind.shape(kind.opened(name, array))
            features = kind.shape(self._weights[name])[1]
            if len(shape) not in (2, 3) or shape[-1] != features:
                raise InvalidValueError(
                    f"{name}: expected 3 axes, or 2 without a batch, the last of {features}, got "
                    f"shape {shape}"
                )
            if kind.dtype(array) != self.dtype:
                raise InvalidTypeError(
                    f"{name}: expected {self.dtype} like the weights, got {kind.dtype(array)}"
                )
            axes.add(len(shape))
        if len(axes) > 1:
            raise InvalidValueError("query, key and value: expected as many axes each")
        return axes == {3}


def _weights_kind(weight: Any) -> ArrayKind:
    kind = call_kind(weight)
    if type(kind) not in (NumPyArrays, TorchTensors, TorchCudaTensors):
        raise InvalidTypeError(
            f"query_weight: expected a NumPy array or a torch tensor, got {type(weight).__qualname__}"
        )
    return kind


def _divided(what: str, number: int, by: str, divisor: int) -> int:
    if divisor < 1 or number < 1 or number % divisor:
        raise InvalidValueError(f"{what}: expected a multiple of {by}={divisor}, got {number}")
    return number // divisor
