"""Calls seen before, so that a repeated one costs two microseconds and not the thirty of its checks.

A call is remembered by everything that decides how it runs but the addresses. What may change between
two calls of one signature (the device, grad mode, the number of threads) is looked at again each time,
in tvm_attention.plans where an array's description tells it, here where not.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tvm_attention import environment
from tvm_attention.arrays import Shape
from tvm_attention.errors import KernelBuildError
from tvm_attention.plans import Planner, PlanTable, numpy_planner, run_remembered, torch_planner
from tvm_attention.plans.layouts import layout, of_one_element, signature
from tvm_attention.prepared import KEPT_BYTES, PreparedCall, workspace
from tvm_attention.threads import launcher

Options = tuple[Any, ...]

_MOST_TABLES = 4096


@dataclass(frozen=True, slots=True)
class _Once:
    """A call that came once. A plan is made when it comes again: most of a decoder's never do, as its
    keys become more each time."""

    prepared: PreparedCall
    threads: int  # 0 where the caller's pool has no say
    out_layout: tuple[Shape, Shape]


class RememberedCalls:
    """Calls on NumPy arrays and torch tensors; those on other kinds are not remembered."""

    def __init__(self, *, threads_follow_pool: bool = True) -> None:
        self._follow = threads_follow_pool
        self._planners: dict[type, Planner | None] = {}
        self._once: dict[Any, _Once] = {}
        # Few plans in each table. The shapes' products are cheaper to come by than the shapes.
        self._numpy_tables: dict[Any, PlanTable] = {}
        self._torch_tables: dict[Any, PlanTable] = {}
        self._tensor: type | None = None  # torch.Tensor, once one came
        self._is_grad_enabled: Any = None
        self._forward_ad: Any = None
        self._pool: Any = None
        self._run: Any = None

    def run(
        self,
        query: Any,
        key: Any,
        value: Any,
        options: Options,
        mask: Any = None,
        out: Any = None,
        new_lse: Callable[[Any], Any] | None = None,
    ) -> Any:
        """The result of a remembered call, in ``out`` if that is given, or None when the checks must run.
        With ``new_lse``, which makes an array for it from the query, the log-sum-exp follows in a tuple.

        One long function: a call of another costs a tenth of a microsecond.
        """
        array = type(query)
        if type(key) is not array or type(value) is not array:
            return None
        if mask is not None and type(mask) is not array:
            return None
        if out is not None and type(out) is not array:
            return None
        if array is self._tensor:
            try:
                # While torch.jit traces, a number of elements is a tensor, which is in no table.
                place = query.numel(), key.numel(), mask is None, out is None, options
                lse = None if new_lse is None else new_lse(query)
            except RuntimeError:  # of some kinds of tensor
                return None
            table = self._torch_tables.get(place)
            if self._forward_ad._current_level >= 0:
                return None
            graded = self._is_grad_enabled()
            if graded and (query.requires_grad or key.requires_grad or value.requires_grad):
                return None
            if query.is_neg() or key.is_neg() or value.is_neg():
                return None
            if mask is not None and (mask.is_neg() or (graded and mask.requires_grad)):
                return None
            if out is not None and (out.is_neg() or (graded and out.requires_grad)):
                return None
        elif array is np.ndarray:
            place = query.size, key.size, mask is None, out is None, options
            lse = None if new_lse is None else new_lse(query)
            table = self._numpy_tables.get(place)
        else:
            return None
        result = None
        if table is not None:
            own, threads = workspace, self._pool.max_threads()
            result = self._run(
                table.address, threads, own.address, own.size, query, key, value, mask, lse, out
            )
        if result is None and self._once:
            result = self._run_again(place, (query, key, value, mask, lse, out))
        return result if lse is None or result is None else (result, lse)

    def add(
        self,
        inputs: Sequence[Any],
        options: Options,
        prepared: PreparedCall,
        result: Any,
        mask: Any = None,
        out: Any = None,
        lse: Any = None,
    ) -> None:
        """Remember how a call on these inputs, giving an array of the shape and strides of ``result``,
        runs; ``out`` is what the caller gave for it. A mask and ``lse`` must be the arrays whose addresses
        ``prepared`` has."""
        arrays = (*inputs, mask, lse, out)
        # With the result: arrays that came through DLPack are inputs of one kind and results of another.
        planner = self._planner((*arrays, result))
        if planner is None:
            return
        if (
            prepared.workspace_bytes > KEPT_BYTES
        ):  # given back after each call: none is there to use
            return
        is_numpy = isinstance(result, np.ndarray)
        query, key = (x.size if is_numpy else x.numel() for x in arrays[:2])
        place = query, key, mask is None, out is None, options
        threads = prepared.threads if self._follow and not environment.num_threads() else 0
        if len(self._once) >= _MOST_TABLES:
            self._once.clear()
        self._once[place, signature(arrays)] = _Once(prepared, threads, layout(result))

    def forget(self) -> None:
        """Drop all of them."""
        self._once.clear()
        self._numpy_tables.clear()
        self._torch_tables.clear()

    def _run_again(self, place: Any, arrays: Sequence[Any]) -> Any:
        """The result of a call that came once, for which a plan is made now; None for a new one."""
        try:
            kind = place, signature(arrays)
            known = self._once.get(kind)
            table = None if known is None else self._table(known, place, arrays)
        except RuntimeError:  # of tensors without strides, or without memory
            return None
        if table is None:
            return None
        self._once.pop(kind, None)
        own, threads = workspace, self._pool.max_threads()
        return self._run(table.address, threads, own.address, own.size, *arrays)

    def _table(self, known: _Once, place: Any, arrays: Sequence[Any]) -> PlanTable | None:
        """The new table of a place: with a plan of the known call. None if no result of its layout is
        to be had."""
        query, out, like = arrays[0], arrays[-1], None
        planner = self._planners[type(query)]
        assert planner is not None
        if out is None:
            out = planner.empty_like(query)
            if layout(out) != known.out_layout:
                like = of_one_element(query, known.out_layout[0])
                out = planner.empty_like(like)
            if type(out) is not type(query) or layout(out) != known.out_layout:
                return None  # a mode of torch made something else of it, such as a fake tensor
        inputs = [x for x in arrays[:-1] if x is not None]
        plan = planner.plan(inputs, known.prepared, known.threads, like, out)
        tables = self._numpy_tables if isinstance(query, np.ndarray) else self._torch_tables
        if len(tables) >= _MOST_TABLES:
            tables.clear()
        table = tables[place] = planner.table(plan, tables.get(place))
        return table

    def _planner(self, arrays: Sequence[Any]) -> Planner | None:
        """That of the arrays' kind; None if they are not of one kind whose calls are remembered."""
        array = type(arrays[0])
        torch: Any = sys.modules.get("torch")
        is_torch = torch is not None and array is torch.Tensor
        if not (is_torch or array is np.ndarray):
            return None
        if any(x is not None and type(x) is not array for x in arrays):
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
