"""Loops over products of float16 numbers become FMLAL and FMLAL2, which add those of the lower and the upper
half of a vector to float32 sums.

A schedule annotates with ``halves`` the loop over both halves; inside it is the loop over the lanes of a sum,
around one store ``sum[...] += float32(a[...]) * float32(b[...])`` in which a or b has no lanes, or both have.
It annotates with ``half_weights`` a loop around a tile of them whose turns take their scalars from
neighbours: these come as one vector, of which the instruction takes an element.
"""

from __future__ import annotations

from typing import Any

from tvm import tirx

from tvm_attention.lowering.statements import at, inside, loads, neighbours, sequence, uses

LANES = 4  # of a sum
_INSTRUCTIONS = ("llvm.aarch64.neon.fmlal", "llvm.aarch64.neon.fmlal2")


def by_halves(stmt: Any, turn: Any = None, number: int = 0) -> Any:
    """The statement with its annotated loops replaced; of a loop ``half_weights``, the variable and the
    number of a turn."""
    notes = stmt.annotations if isinstance(stmt, tirx.For) else {}
    if "half_weights" in notes:
        turns = range(int(stmt.extent))
        return sequence(
            [at(by_halves(stmt.body, stmt.loop_var, n), {stmt.loop_var: n}) for n in turns]
        )
    if "halves" in notes:
        return _products(stmt, turn, number)
    return inside(stmt, lambda s: by_halves(s, turn, number))


def _products(halves: Any, turn: Any, number: int) -> Any:
    lanes = halves.body
    store = lanes.body
    sums = tirx.BufferLoad(store.buffer, store.indices)
    half, lane = halves.loop_var, lanes.loop_var
    factors = [x for x in loads(store.value) if not x.source.same_as(store.buffer)]
    # LLVM takes an element for what is the same eight times in the last place only.
    factors.sort(key=lambda load: not uses(load, lane))
    operands = [_operand(load, half, lane, turn, number) for load in factors]
    stmts = []
    for n, instruction in enumerate(_INSTRUCTIONS):
        total = neighbours(sums, {half: n, lane: 0}, LANES)
        value = tirx.call_llvm_pure_intrin(f"float32x{LANES}", instruction, total, *operands)
        stmts.append(tirx.BufferStore(store.buffer, value, total.indices))
    return sequence(stmts)


def _operand(load: Any, half: Any, lane: Any, turn: Any, number: int) -> Any:
    """Eight numbers: neighbours, or one of the weights of all turns eight times."""
    if uses(load, lane):
        return neighbours(load, {half: 0, lane: 0}, 2 * LANES)
    weights = neighbours(load, {turn: 0}, LANES)
    element = tirx.Shuffle([weights], [tirx.const(number, "int32")])
    return tirx.Broadcast(element, 2 * LANES)
