"""What is remembered of calls, in words."""

from __future__ import annotations

import ctypes
import struct
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tvm_attention.arrays import ArrayKind, reach
from tvm_attention.prepared import PreparedCall

_WORD, _DOUBLE = struct.Struct("q"), struct.Struct("d")
_INT, _FLOAT = 1, 3  # TVMFFIAny's type indices
_OUT = 3  # which of main's arguments is the result's address
_ADDRESSES = 5  # of main's arguments: three inputs, the result, the workspace
_MOST_PLANS = 16  # of a table: to look through them all takes a quarter of a microsecond


class _View(ctypes.Structure):
    """DLTensor, with the device and the number of axes and dtype as words."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device", ctypes.c_int64),
        ("kind", ctypes.c_int64),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("offset", ctypes.c_uint64),
    )


@dataclass(frozen=True, slots=True)
class Plan:
    """A call but for its arrays' memory: ``words`` as run.ll reads them, and what they point to.
    Plans of one ``signature`` are of calls that nothing in their words tells apart."""

    address: int
    signature: tuple[int, ...]
    words: array[int]
    alive: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class PlanTable:
    """Plans to try, newest first. It is never changed: threads read it while another makes the next."""

    address: int
    words: array[int]
    plans: tuple[Plan, ...]


class Planner:
    """Makes plans of calls on one ``kind`` of array.

    ``describe`` is the address of a function int(array, view) that fills in a DLTensor;
    ``empty_like`` a Python callable.
    """

    def __init__(self, kind: ArrayKind, describe: int, empty_like: Callable[[Any], Any]) -> None:
        self.empty_like = empty_like
        self._kind = kind
        self._describe_address = describe
        self._describe = ctypes.PYFUNCTYPE(
            ctypes.c_int, ctypes.py_object, ctypes.POINTER(_View)
        )(describe)  # fmt: skip

    def table(self, plan: Plan, known: PlanTable | None) -> PlanTable:
        """A table of this plan and those of another, less the ones it replaces and the oldest where
        there are too many."""
        others = known.plans if known else ()
        rest = (other for other in others if other.signature != plan.signature)
        plans = (plan, *rest)[:_MOST_PLANS]
        head = (self._describe_address, id(self.empty_like), id(None))
        words = array("q", [*head, *(plan.address for plan in plans), 0])
        return PlanTable(words.buffer_info()[0], words, plans)

    def plan(
        self, arrays: Sequence[Any], prepared: PreparedCall, threads: int, like: Any, out: Any
    ) -> Plan:
        """The plan of a call on such arrays (query, key, value, and the mask and the log-sum-exp, if any)
        by that many threads (0: any). Results are laid out as ``out``; ``empty_like`` of ``like`` (None:
        of the query) gives such, where the caller does not. Raises RuntimeError for arrays without
        memory."""
        described = (*arrays, out)
        layouts: list[int] = []
        for index, x in zip((0, 1, 2, *prepared.beside, _OUT), described, strict=True):
            layouts.append(index)
            layouts += self.layout(x)
        count = _ADDRESSES + len(prepared.arguments)
        words = [prepared.main.__chandle__(), count, threads, prepared.workspace_bytes]
        words.append(0 if like is None else id(like))
        words += layouts
        words += _any_values((*(0,) * _ADDRESSES, *prepared.arguments))
        words += [distance for x in described for distance in reach(self._kind, x)]
        kept = array("q", words)
        alive = (
            prepared,
            like,
            [x.dtype for x in described],
        )  # which a description may name by address
        return Plan(kept.buffer_info()[0], (threads, *layouts), kept, alive)

    def layout(self, x: Any) -> list[int]:
        """The words that decide whether another array lies as this one does. Raises RuntimeError for
        an array without memory or strides."""
        view = _View()
        if self._describe(x, view) or not view.data:
            raise RuntimeError("expected an array with memory")
        axes = view.kind & 0xFFFFFFFF
        return [view.device, view.kind, *view.shape[:axes], *view.strides[:axes]]


def _any_values(arguments: tuple[float, ...]) -> list[int]:
    """Ints and floats as TVMFFIAny, two words each."""
    words = [_INT] * (2 * len(arguments))
    for n, x in enumerate(arguments):
        if type(x) is float:
            words[2 * n] = _FLOAT
            (x,) = _WORD.unpack(_DOUBLE.pack(x))
        words[2 * n + 1] = int(x)
    return words
