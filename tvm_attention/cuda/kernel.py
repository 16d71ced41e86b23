"""A kernel on a GPU and the calls it serves."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from tvm_attention.arguments import SCALARS, STRIDES, TENSORS
from tvm_attention.arrays import ArrayKind, is_dense
from tvm_attention.arrays.kind import type_name
from tvm_attention.call import Call
from tvm_attention.cuda.dlpack_arrays import device_kind
from tvm_attention.cuda.launching import WORKSPACE, grids, parameter_types
from tvm_attention.cuda.memory import Shadow
from tvm_attention.cuda.parameters import Parameters
from tvm_attention.device_code import DeviceCode, DeviceFunction
from tvm_attention.dtypes import ELEMENT_BYTES
from tvm_attention.errors import InvalidTypeError, UnsupportedError
from tvm_attention.kernel import Kernel
from tvm_attention.kernel_source import KernelSource
from tvm_attention.operands import kernel_strides
from tvm_attention.outputs import no_keys
from tvm_attention.schedules import Candidate
from tvm_attention.schedules.cuda_space import FUSED_SPLIT_KV, without_vectors
from tvm_attention.workload import AttentionWorkload


class DeviceArrays(ArrayKind, Protocol):
    """A kind of array whose memory is a GPU's."""

    def uploaded(self, numbers: NDArray[Any], like: Any) -> Any:
        """A copy of an array on the processor in the memory of ``like``'s GPU, made before anything that
        the caller's stream runs later."""

    def device(self, array: Any) -> int:
        """The number of the array's GPU."""

    def stream(self, array: Any) -> int:
        """The handle of the caller's current stream on the array's GPU."""

    def captures(self, array: Any) -> bool:
        """Whether what that stream is asked for is written into a graph."""


class LoadedCode(Protocol):
    """Functions in a GPU's memory."""

    code: DeviceCode
    multiprocessors: int

    def launch(
        self, function: DeviceFunction, blocks: int, parameters: Parameters, stream: int
    ) -> None:
        """Start a function on a stream; does not wait for it."""


class DeviceKernel(Kernel):
    """Attention compiled for a GPU; called and checked as a kernel for the processor is.

    ``load`` puts the functions of a candidate on a GPU. Calls are started on the caller's current stream of
    the arrays' GPU and not waited for. Tensors are read in place where their last axis is dense; if their
    addresses or strides do not suit the candidate's vectors, a kernel without vectors serves the call.
    """

    def __init__(
        self,
        workload: AttentionWorkload,
        source: KernelSource,
        load: Callable[[Candidate, int], LoadedCode],
    ) -> None:
        super().__init__(workload, source, None)
        self._candidate = source.candidate
        self.decodes = source.candidate.variant == FUSED_SPLIT_KV
        self._load = load
        self._types = parameter_types(workload)
        self._loaded: dict[tuple[Candidate, int], LoadedCode] = {}

    def compute(
        self, kind: Any, call: Call, inputs: tuple[Any, Any, Any], out: Any, lse: Any = None
    ) -> None:
        """Start writing attention into ``out`` and the log-sum-exp of every row into ``lse``."""
        sizes = call.sizes
        if sizes.empty or sizes.key_length == 0:
            no_keys(kind, call, out, lse)
            return
        dense = [x if is_dense(kind.shape(x), kind.strides(x)) else kind.dense(x) for x in inputs]
        candidate = self._candidate
        if not all(_is_aligned(kind, call, x, candidate["vector"]) for x in dense):
            candidate = without_vectors(candidate)
        loaded = self._loaded_on(kind.device(inputs[0]), candidate)
        kept: list[Any] = []  # until all is started: memory freed then is used again after it

        def address(numbers: Any) -> int:
            if isinstance(numbers, np.ndarray) and not isinstance(numbers, Shadow):
                _require_no_capture(kind, inputs[0])
                numbers = kind.uploaded(np.require(numbers, requirements=("C", "W")), inputs[0])
            kept.append(numbers)
            return int(kind.address(numbers))

        sizes_of_launch = grids(self.workload, candidate, sizes, loaded.multiprocessors)
        scalars = call.scalars(1, sizes_of_launch.splits)
        values: dict[str, float] = dict(zip(SCALARS, scalars, strict=True))
        values |= call.extra_values(kind, lse, address)
        for name, array in zip(TENSORS, (*dense, out), strict=True):
            values[name] = kind.address(array)
            strides = kernel_strides(kind.strides(array))
            values |= {f"{name}_{a}_stride": s for a, s in zip(STRIDES, strides, strict=True)}
        if sizes_of_launch.workspace:
            kept.append(kind.empty((sizes_of_launch.workspace,), inputs[0], "float32"))
            values[WORKSPACE] = kind.address(kept[-1])
        stream = kind.stream(inputs[0])
        for function, blocks in zip(loaded.code.functions, sizes_of_launch.blocks, strict=True):
            parameters = Parameters(function.parameters, self._types, values)
            loaded.launch(function, blocks, parameters, stream)

    def _kind_of(self, query: Any) -> ArrayKind:
        kind = device_kind(query)
        if kind is None:
            raise InvalidTypeError(
                f"query: expected a torch tensor or an array with DLPack on a GPU, for which this kernel "
                f"was loaded, got {type_name(query)} on the processor; move it there or load a kernel for "
                f"the processor"
            )
        return kind

    def _loaded_on(self, device: int, candidate: Candidate) -> LoadedCode:
        key = (candidate, device)
        if key not in self._loaded:
            self._loaded[key] = self._load(candidate, device)
        return self._loaded[key]


def _require_no_capture(kind: Any, array: Any) -> None:
    """Raises UnsupportedError where a graph would copy from memory of the processor that is gone by then."""
    if kind.captures(array):
        raise UnsupportedError(
            "a call that is captured into a graph: expected small arrays (lengths, offsets, page tables, "
            "slopes, sinks, scales) on the GPU, got one on the processor; copy it there before"
        )


def _is_aligned(kind: ArrayKind, call: Call, array: Any, vector: int) -> bool:
    """Whether vectors of elements of an array, from any of its rows on, lie at whole multiples of their
    size."""
    strides = list(kind.strides(array)[:-1])
    if call.ragged is None:  # then an axis of one element is not stepped along
        strides = [s for n, s in zip(kind.shape(array), strides, strict=False) if n > 1]
    if call.pages is not None:
        strides += [call.pages.key_stride, call.pages.value_stride]
    size = vector * ELEMENT_BYTES[kind.dtype(array)]
    return kind.address(array) % size == 0 and all(s % vector == 0 for s in strides)
