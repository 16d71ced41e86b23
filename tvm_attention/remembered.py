"""Calls seen before, so that a repeated one costs two microseconds and not the thirty of its checks.

A call is remembered by everything that decides how it runs but the addresses. What may change between
two calls of one signature (the device, grad mode, the number of threads) is looked at again each time,
in tvm_attention.plans where an array's description tells it, here where not.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import numpy as np

from tvm_attention import environment
from tvm_attention.arrays import Shape
from tvm_attention.errors import KernelBuildError
from tvm_attention.plans import Planner, PlanTable, numpy_planner, run_remembered, torch_planner
from tvm_attention.prepared import KEPT_BYTES, PreparedCall, workspace
from tvm_attention.threads import launcher

Options = tuple[Any, ...]

_MOST_TABLES = 4096


class RememberedCalls:
    """Calls on NumPy arrays and torch tensors; those on other kinds are not remembered."""

    def __init__(self, *, threads_follow_pool: bool = True) -> None:
        self._follow = threads_follow_pool
        self._planners: dict[type, Planner | None] = {}
        # Few plans in each table. The shapes' products are cheaper to come by than the shapes.
        self._numpy_tables: dict[Any, PlanTable] = {}
        self._torch_tables: dict[Any, PlanTable] = {}
        self._tensor: type | None = None  # torch.Tensor, once one came
        self._is_grad_enabled: Any = None
        self._forward_ad: Any = None
        self._pool: Any = None
        self._run: Any = None

    def run(self, query: Any, key: Any, value: Any, options: Options, mask: Any = None) -> Any:
        """The result of a remembered call, or None when the checks must run.

        One long function: a call of another costs a tenth of a microsecond.
        """
        array = type(query)
        if type(key) is not array or type(value) is not array:
            return None
        if mask is not None and type(mask) is not array:
            return None
        if array is self._tensor:
            try:
                # While torch.jit traces, a number of elements is a tensor, which is in no table.
                place = query.numel(), key.numel(), mask is None, options
            except RuntimeError:  # of some kinds of tensor
                return None
            table = self._torch_tables.get(place)
            if table is None or self._forward_ad._current_level >= 0:
                return None
            graded = self._is_grad_enabled()
            if graded and (query.requires_grad or key.requires_grad or value.requires_grad):
                return None
            if query.is_neg() or key.is_neg() or value.is_neg():
                return None
            if mask is not None and (mask.is_neg() or (graded and mask.requires_grad)):
                return None
        elif array is np.ndarray:
            table = self._numpy_tables.get((query.size, key.size, mask is None, options))
            if table is None:
                return None
        else:
            return None
        own = workspace
        threads = self._pool.max_threads()
        if mask is None:
            return self._run(table.address, threads, own.address, own.size, query, key, value)
        return self._run(table.address, threads, own.address, own.size, query, key, value, mask)

    def add(
        self,
        inputs: Sequence[Any],
        options: Options,
        prepared: PreparedCall,
        out: Any,
        mask: Any = None,
    ) -> None:
        """Remember how a call on these inputs, giving an array of the shape and strides of ``out``,
        runs. A mask must be the array whose address ``prepared`` has."""
        arrays = tuple(inputs) if mask is None else (*inputs, mask)
        # With the result: arrays that came through DLPack are inputs of one kind and results of another.
        planner = self._planner((*arrays, out))
        if planner is None:
            return
        if (
            prepared.workspace_bytes > KEPT_BYTES
        ):  # given back after each call: none is there to use
            return
        like, empty_like = None, planner.empty_like
        if _layout(empty_like(arrays[0])) != _layout(out):
            like = _of_one_element(arrays[0], tuple(out.shape))
            if _layout(empty_like(like)) != _layout(out):
                return
        is_numpy = isinstance(out, np.ndarray)
        tables = self._numpy_tables if is_numpy else self._torch_tables
        if len(tables) >= _MOST_TABLES:
            tables.clear()
        query, key = (x.size if is_numpy else x.numel() for x in arrays[:2])
        place = query, key, mask is None, options
        threads = prepared.threads if self._follow and not environment.num_threads() else 0
        plan = planner.plan(arrays, prepared, threads, like, out)
        tables[place] = planner.table(plan, tables.get(place))

    def forget(self) -> None:
        """Drop all of them."""
        self._numpy_tables.clear()
        self._torch_tables.clear()

    def _planner(self, arrays: Sequence[Any]) -> Planner | None:
        """That of the arrays' kind; None if they are not of one kind whose calls are remembered."""
        array = type(arrays[0])
        torch: Any = sys.modules.get("torch")
        is_torch = torch is not None and array is torch.Tensor
        if not (is_torch or array is np.ndarray) or any(type(x) is not array for x in arrays):
            return None
        if array not in self._planners:
            self._pool = launcher()
            try:
                self._run = run_remembered()
                planner = torch_planner(torch) if is_torch else numpy_planner()
            except KernelBuildError:  # an interpreter that hides its functions: kernels do run
                planner = None
            if is_torch:
                self._is_grad_enabled, self._tensor = torch.is_grad_enabled, array
                self._forward_ad = torch.autograd.forward_ad
            self._planners[array] = planner
        return self._planners[array]


def _layout(array: Any) -> tuple[Shape, Shape]:
    strides = array.strides if isinstance(array, np.ndarray) else array.stride()
    return tuple(array.shape), tuple(strides)


def _of_one_element(array: Any, shape: Shape) -> Any:
    """An array of a shape and the other's dtype that stands for its layout and takes no memory."""
    if isinstance(array, np.ndarray):
        return np.broadcast_to(np.zeros(1, array.dtype), shape)
    return array.new_empty(1).expand(shape)
