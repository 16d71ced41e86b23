"""The loop over blocks of keys of a GPU kernel: when copies to shared memory are made, and who waits where.

Queries, keys and values are copied by all threads of a block and read by all: a barrier lies between. What
threads tell each other of a row (maxima, sums) is read by those that share the row; where these are of one
warp, the warp alone waits. Every shared buffer of the loop has memory of its own, so that nothing
else need be waited for. An iteration is

    barrier, copy the keys, barrier, scores and weights, barrier, copy the values, barrier, weighted values

where keys and values lie in the same memory, or, with copies that go on while threads compute,

    wait, barrier, start to copy the values, scores and weights,
    wait, barrier, start to copy the next block's keys, weighted values

A thread waits for its own copies; only a barrier after that shows others what it copied.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import tvm
from tvm import tirx

from tvm_attention.device_code import CLEAR, COPY, WAIT_FOR_COPIES
from tvm_attention.errors import KernelBuildError
from tvm_attention.lowering.key_block import running, stores_to, unless_whole
from tvm_attention.lowering.statements import inside, load_of, sequence, statements, substituted

WARP = 32
SHARED = "shared.dyn"


@dataclass(frozen=True)
class KeyLoop:
    """``stages``: buffers by name, among them a block's keys KT and values VT, and maxima MS and weights PS,
    which the ``across`` threads of a row tell each other. ``whole``: whether every row sees every key of the
    block; None where that is not known. ``in_registers``: whether weights are multiplied from there, and
    are in shared memory for the repair of sums alone."""

    stages: Mapping[str, Any]
    across: int
    whole: Any
    in_registers: bool

    def lowered(self, loop: Any, first: Any, count: Any, overlap: bool) -> list[Any]:
        """What takes the place of a loop over ``count`` blocks from the ``first`` on."""
        shared, rest = _hoisted(statements(loop.body))
        KT, VT = self.stages["KT"], self.stages["VT"]
        keys, rest = _taken(rest, KT)
        values, rest = _taken(rest, VT)
        rest = self._shortened(shown(rest, self.stages["MS"], self.across))
        after = 1 + max(n for n, s in enumerate(rest) if self._weighs(s))
        start = next(n for n, s in enumerate(rest) if not _allocates(s))
        n, blocks = tirx.Var("block", "int32"), tirx.Var("blocks", "int32")
        scores, weighted = rest[start:after], rest[after:]
        before: list[Any] = []
        if overlap:
            copied = _copied(keys, KT)
            before = [_if(blocks > 0, _at(copied, loop, first))]
            following = _if(n + 1 < blocks, _at(copied, loop, first + n + 1))
            made = [
                *rest[:start], _wait(), _barrier(), _copied(values, VT), *scores,
                _wait(), _barrier(), following, *weighted,
            ]  # fmt: skip
        else:
            made = [
                *rest[:start], _barrier(), keys, _barrier(), *scores, _barrier(), values, _barrier(),
                *weighted,
            ]  # fmt: skip
        whole = _at(sequence([x for s in made for x in statements(s)]), loop, first + n)
        zero = tirx.const(0, "int32")
        around = tirx.For(n, zero, blocks, loop.kind, whole)
        return [*shared, tirx.Bind(blocks, count), *before, around]

    def _shortened(self, rest: list[Any]) -> list[Any]:
        """The statements without what a block of keys does not need."""
        rest = running(rest, self.stages)
        if self.in_registers and "OX" not in self.stages:
            rest = [s for s in rest if not stores_to(s, self.stages["PS"])]
        if self.whole is None:
            return rest
        repair = ("FLAG", "OX", *(["PS"] if self.in_registers else []))
        return unless_whole(rest, self.stages, self.whole, repair)

    def _weighs(self, stmt: Any) -> bool:
        """Whether a statement stores weights, or sums of them."""
        return any(stores_to(stmt, self.stages[name]) for name in ("LP", "PS"))


def shown(stmts: list[Any], buffer: Any, across: int) -> list[Any]:
    """Statements, behind what stores into the buffer a wait of the threads that share its rows."""
    made: list[Any] = []
    for s in stmts:
        made.append(s)
        if stores_to(s, buffer):
            made.append(_warp__barrier() if WARP % across == 0 else _barrier())
    return made


def _barrier() -> Any:
    """All threads of the block wait for each other."""
    return tirx.Evaluate(tirx.call_intrin("int32", "tirx.tvm_storage_sync", "shared"))


def _warp__barrier() -> Any:
    return _call("__syncwarp")


def _hoisted(body: list[Any]) -> tuple[list[Any], list[Any]]:
    """Allocations of shared memory, which then outlive an iteration, and the other statements."""
    shared = [s for s in body if _allocates(s) and s.buffer.scope() == SHARED]
    return shared, [s for s in body if not any(s.same_as(x) for x in shared)]


def _taken(body: list[Any], buffer: Any) -> tuple[Any, list[Any]]:
    """The statement that stores into a buffer, and the others."""
    at = next(n for n, s in enumerate(body) if stores_to(s, buffer))
    return body[at], body[:at] + body[at + 1 :]


def _allocates(stmt: Any) -> bool:
    return isinstance(stmt, (tirx.AllocBuffer, tirx.DeclBuffer))


def _at(stmt: Any, loop: Any, block: Any) -> Any:
    """The statement for another block of keys than the loop's."""
    return substituted(stmt, {loop.loop_var: block})


def _copied(stmt: Any, buffer: Any) -> Any:
    """A nest that stores vectors of elements into a buffer, with starts of copies for stores."""
    if isinstance(stmt, tirx.For) and stmt.kind == tirx.ForKind.VECTORIZED:
        first = substituted(stmt.body, {stmt.loop_var: tirx.const(0, "int32")})
        return _copy(first, buffer, int(stmt.extent))
    return inside(stmt, lambda s: _copied(s, buffer))


def _copy(store: Any, buffer: Any, elements: int) -> Any:
    """The start of a copy where there is something to copy, zeros elsewhere: of the store of a first element,
    which a thread without a share of the work leaves out."""
    if isinstance(store, tirx.IfThenElse):
        return _if(store.condition, _copy(store.then_case, buffer, elements))
    size = elements * tvm.DataType(str(buffer.dtype)).bits // 8
    to = tirx.address_of(tirx.BufferLoad(buffer, store.indices))
    source, conditions = store.value, []
    while _is_choice(source):
        condition, source, _ = source.args
        conditions.append(condition)
    if not hasattr(source, "indices"):  # no load
        raise KernelBuildError(f"copies beside computing: expected numbers as stored, got {source}")
    name, inside_tensor = f"{COPY}<{size}>", tirx.all(*conditions) if conditions else _true()
    if load_of("table", source.indices[-1]) is None:
        return _call(name, to, tirx.address_of(source), inside_tensor)
    # Beyond the last key there is no page to be looked up.
    copy = _call(name, to, tirx.address_of(source), _true())
    return tirx.IfThenElse(inside_tensor, copy, _call(f"{CLEAR}<{size}>", to))


def _true() -> Any:
    return tirx.const(True, "bool")


def _is_choice(expression: Any) -> bool:
    return str(getattr(getattr(expression, "op", None), "name", "")).endswith("if_then_else")


def _call(function: str, *arguments: Any) -> Any:
    return tirx.Evaluate(tirx.call_extern("int32", function, *arguments))


def _wait() -> Any:
    """For all copies that the thread has started."""
    return _call(WAIT_FOR_COPIES)


def _if(condition: Any, stmt: Any) -> Any:
    return tirx.IfThenElse(condition, stmt, None)
