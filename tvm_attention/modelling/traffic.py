"""Cache lines that a nest of loops moves into and out of a cache of a given size: by footprints, without
simulation. A line that is written is fetched first and goes out again: it counts twice."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from itertools import pairwise

from tvm_attention.modelling.nests import Access, Nest

LINE = 64
_FILLED = 0.75  # of a cache: what is left is for what is not counted and for conflicts


def lines_into(nest: Nest, size: int) -> float:
    """Lines that a run of the nest moves between a cache of ``size`` bytes, that held none, and what is
    behind."""
    return _traffic(nest, size * _FILLED / LINE, _written(nest))


def lines_that_stay(nest: Nest, size: int) -> dict[str, float] | None:
    """Lines of each buffer that the nest moves, both ways, where all stay in a cache until it ends; None
    where they do not."""
    whole = _lines(nest, {})
    if sum(whole.values()) > size * _FILLED / LINE:
        return None
    written = _written(nest)
    return {buffer: 2 * n if buffer in written else n for buffer, n in whole.items()}


def _traffic(nest: Nest, room: float, written: set[str]) -> float:
    """The outermost loops whose lines all fit bring each once; one around them brings again what a turn
    moves."""
    whole = _lines(nest, {})
    if sum(whole.values()) <= room:
        return _both_ways(whole, written)
    turn = _turn(nest)
    if sum(turn.values()) <= room:
        # A turn finds what this loop does not move, and the rest of the lines that the one before began.
        moved = _moved(nest)
        return _both_ways({b: whole[b] if b in moved else n for b, n in turn.items()}, written)
    inner = sum(_traffic(loop, room, written) for loop in nest.inner)
    own = _both_ways(_of_accesses(nest.accesses, {}), written)
    return nest.turns * (inner + own)


def _both_ways(lines: Mapping[str, float], written: set[str]) -> float:
    return float(sum(2 * n if buffer in written else n for buffer, n in lines.items()))


def _written(nest: Nest) -> set[str]:
    found = {a.buffer for a in nest.accesses if a.written}
    for loop in nest.inner:
        found |= _written(loop)
    return found


def _lines(nest: Nest, outer: Mapping[str, int]) -> dict[str, float]:
    """Lines of each buffer that a whole run of the nest touches."""
    loops = {**outer, nest.name: nest.turns}
    found = _of_accesses(nest.accesses, loops)
    for loop in nest.inner:
        for buffer, lines in _lines(loop, loops).items():
            found[buffer] = max(found.get(buffer, 0.0), lines)
    return found


def _turn(nest: Nest) -> dict[str, float]:
    found = _of_accesses(nest.accesses, {})
    for loop in nest.inner:
        for buffer, lines in _lines(loop, {}).items():
            found[buffer] = max(found.get(buffer, 0.0), lines)
    return found


def _moved(nest: Nest) -> set[str]:
    """Buffers that each turn of the nest's own loop touches elsewhere."""
    found = {a.buffer for a in nest.accesses if nest.name in a.steps}
    todo = list(nest.inner)
    while todo:
        loop = todo.pop()
        found |= {a.buffer for a in loop.accesses if nest.name in a.steps}
        todo += loop.inner
    return found


def _of_accesses(accesses: list[Access], loops: Mapping[str, int]) -> dict[str, float]:
    """Lines by buffer, given how often each loop turns. Accesses that differ in their first element only,
    rows of an unrolled tile, are counted each unless they overlap."""
    groups: dict[tuple[str, tuple[tuple[str, int], ...]], set[int]] = defaultdict(set)
    widest: dict[tuple[str, tuple[tuple[str, int], ...]], int] = {}
    for access in accesses:
        steps = tuple(sorted((n, s) for n, s in access.steps.items() if n in loops))
        key = access.buffer, steps
        groups[key].add(access.base)
        widest[key] = max(widest.get(key, 0), access.extent)
    found: dict[str, float] = {}
    for (buffer, steps), bases in groups.items():
        lines = _spread(sorted(bases), widest[buffer, steps], steps, loops)
        found[buffer] = max(found.get(buffer, 0.0), lines)
    return found


def _spread(
    bases: list[int], extent: int, steps: tuple[tuple[str, int], ...], loops: Mapping[str, int]
) -> float:
    moves = [(abs(step), loops[name]) for name, step in steps]
    apart = [b - a for a, b in pairwise(bases)]
    if apart:
        moves.append((max(1, min(apart)), len(bases)))
    span, runs = extent, 1
    for step, turns in sorted(moves):
        if step <= max(span, LINE):
            span += step * (turns - 1)
        else:
            runs *= turns
    return runs * max(1.0, span / LINE)
