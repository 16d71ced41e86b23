"""Steps of decoding like one before: of the next one, only its query and the number of keys are new.

An ordinary call is remembered by its shapes (tvm_attention.remembered); those of a decoder never come
again, as its keys become more each time. What a step runs through in Python is little on purpose: between
two of them a model has swept it out of the processor's caches, and that costs ten times what it seems to.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from tvm_attention.arguments import SCALARS
from tvm_attention.arrays import NumPyArrays, TorchTensors, is_dense, reach
from tvm_attention.attend import Opened, new_result
from tvm_attention.dtypes import ELEMENT_BYTES
from tvm_attention.kernel import Kernel
from tvm_attention.loading import load
from tvm_attention.operands import kernel_strides
from tvm_attention.plans.layouts import signature
from tvm_attention.prepared import PreparedCall
from tvm_attention.splits import most_rows, split_count
from tvm_attention.threads import launcher
from tvm_attention.workload import DECODE_ROWS
from tvm_attention.worth_threads import worth_threads

Options = tuple[Any, ...]  # causal, window, softcap, scale, layout
_WINDOW = 1

_MOST_STEPS = 64
_KEYS, _ROWS, _OFFSET, _THREADS, _SPLITS = (
    SCALARS.index(name) for name in ("key_length", "key_rows", "causal_offset", "threads", "splits")
)
_generation = 0


def forget_steps() -> None:
    """Let no step before this count, so that new tuning records and archives are seen."""
    global _generation
    _generation += 1


class _Step:
    """A step, and how it runs at the number of keys that it had last."""

    def __init__(self, kernel: Kernel, o: Opened, given: Any) -> None:
        kind, call, sizes = o.kind, o.call, o.call.sizes
        self._kernel, self._kind, self._pool = kernel, kind, launcher()
        self._key_operations = sizes.key_operations
        self._tasks, self._most = sizes.batch * sizes.kv_heads, most_rows(kernel.workload)
        self._key, self._value = (kind.address(x) for x in o.inputs[1:])
        out = new_result(o) if given is None else given
        self._shape = kind.shape(out)
        by_head = kind.swapped_heads(out) if o.rows_first else out
        strides = [kind.strides(x) for x in (*o.inputs, by_head)]
        extra = call.extra_arguments(kernel.workload, kind, None)
        rest = (s for x in strides for s in kernel_strides(x))
        self._arguments = [*call.scalars(1, 1), *rest, *extra]
        self._call = call  # which the arguments point into
        self._keys = sizes.key_length
        self._reaches = [reach(kind, x) for x in (*o.inputs, by_head)]
        self._key_bytes = [kind.strides(x)[2] * ELEMENT_BYTES[kind.dtype(x)] for x in o.inputs[1:]]
        self._before = 0  # what is added to the number of keys to be the causal offset
        self._follows = call.options.causal != "top_left"
        if self._follows:
            self._before = -sizes.query_length
        self._last: tuple[int, int, PreparedCall] = (0, 0, self._prepared(sizes.key_length, 1))

    def run(self, query: Any, keys: int, out: Any) -> Any:
        kind = self._kind
        kind.opened("query", query)  # what no shape tells: a gradient asked for, say
        first = kind.address(query)
        if out is None:
            out = kind.empty(self._shape, query)
            place = kind.address(out)
        else:
            kind.opened("out", out)
            place = kind.address(out)
            if not self._is_apart(first, keys, place):
                return None
        threads = self._kernel.num_threads or self._pool.max_threads()
        of_keys, of_threads, prepared = self._last
        if of_keys != keys or of_threads != threads:
            prepared = self._prepared(keys, threads)
            self._last = keys, threads, prepared
        prepared.run(first, self._key, self._value, place)
        return out

    def _is_apart(self, query: int, keys: int, out: int) -> bool:
        """Whether a result at this address shares no memory with what is read."""
        *read, (low, high) = self._reaches
        start, end, more = out + low, out + high, keys - self._keys
        addresses = (query, self._key, self._value)
        grown = (0, *(more * n for n in self._key_bytes))
        return not any(
            address + low < end and start < address + high + growth
            for address, (low, high), growth in zip(addresses, read, grown, strict=True)
        )

    def _prepared(self, keys: int, threads: int) -> PreparedCall:
        arguments = self._arguments.copy()
        arguments[_KEYS] = arguments[_ROWS] = keys
        arguments[_OFFSET] = keys + self._before if self._follows else 0
        used = worth_threads(threads, self._tasks, self._key_operations * keys)
        arguments[_THREADS] = used
        arguments[_SPLITS] = split_count(self._tasks, keys, self._most, used)
        return self._kernel.prepare_with(threads, tuple(arguments))


class Steps:
    """Those of one cache, whose keys and values stay where they are and are equally many in each element.

    A step is known by all that decides how it runs but its query's address and the number of keys; kernels
    are chosen anew where that reaches a power of two.
    """

    def __init__(self) -> None:
        self._known: dict[Any, _Step] = {}
        self._generation = _generation

    def run(self, query: Any, keys: int, options: Options, out: Any) -> Any:
        """The result of a step like one before, in ``out`` if that is given; None where the checks must
        run."""
        if not self._known or self._generation != _generation:
            return None
        try:
            step = self._known.get(_signature(query, keys, options, out))
        except (TypeError, RuntimeError):  # a list for a window, a tensor without strides
            return None
        return None if step is None else step.run(query, keys, out)

    def add(self, query: Any, options: Options, out: Any, o: Opened) -> None:
        """Remember a step that was checked and computed."""
        if o.call.ragged is not None or type(o.kind) not in (NumPyArrays, TorchTensors):
            return
        sizes = o.call.sizes
        if sizes.query_heads // sizes.kv_heads * sizes.query_length > max(DECODE_ROWS):
            return  # a prefill, for which no kernel is looked up again
        if o.call.options.window not in (None, options[_WINDOW]):  # it was cut, to few keys
            return
        if not all(is_dense(o.kind.shape(x), o.kind.strides(x)) for x in o.inputs):
            return
        kernel = load(o.call.workload("attention"))
        # Archives choose for each call, and GPUs' kernels are launched in another way.
        if type(kernel) is not Kernel or not kernel.decodes:
            return
        known = _signature(query, o.call.sizes.key_length, options, out)
        if known is None:
            return
        if self._generation != _generation or len(self._known) >= _MOST_STEPS:
            self._known.clear()
            self._generation = _generation
        try:
            self._known[known] = _Step(kernel, o, out)
        except TypeError:  # a list for a window
            return


def _signature(query: Any, keys: int, options: Options, out: Any) -> Any:
    array = type(query)
    if out is not None and type(out) is not array:
        return None
    torch = sys.modules.get("torch")
    if array is not np.ndarray and (torch is None or array is not torch.Tensor):
        return None
    return array, signature((query, out)), options, keys.bit_length()
