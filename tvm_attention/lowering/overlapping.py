"""Keeping a matrix unit busy while vectors compute: scores of the next strip beside weights of this one.

A schedule marks a loop over strips of queries ``overlapped``; inside it, the loop that computes a strip's
scores, tile by tile, ``scores_ahead``, and the loop that computes its weights from them, as many keys at a
time, ``weights_beside``. Scores are then computed one strip ahead, each tile in place of the one whose
weights have just been computed, by steps between theirs: a processor looks a few hundred instructions ahead,
fewer than either stage has.

Rows beyond the last of a strip are computed as well; nothing is read of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tvm import tirx

from tvm_attention.lowering.matrix_unit import MatrixUnit
from tvm_attention.lowering.statements import inside, sequence, statements, substituted, with_body


@dataclass(frozen=True)
class Ahead:
    """The statements that compute a strip's scores: what comes before the loop over tiles, and the loop."""

    before: Sequence[Any]
    tiles: Any

    def of(self, strip: Any, place: Any, exists: Any) -> Ahead:
        """The same of another strip; no tiles unless it ``exists``."""
        there = {strip: place}
        tiles = substituted(self.tiles, there)
        extent = tirx.Select(exists, tiles.extent, tirx.const(0, "int32"))
        loop = tirx.For(tiles.loop_var, tiles.min, extent, tiles.kind, tiles.body)
        return Ahead([substituted(s, there) for s in self.before], loop)


def split(body: Any) -> tuple[Ahead | None, Any]:
    """A strip's statements that compute its scores, if any do, and the others."""
    stmts = statements(body)
    at = next((n for n, s in enumerate(stmts) if "scores_ahead" in _notes(s)), None)
    if at is None:
        return None, body
    allocations = [s for s in stmts[:at] if isinstance(s, tirx.AllocBuffer)]
    before = [s for s in stmts[:at] if not isinstance(s, tirx.AllocBuffer)]
    return Ahead(before, stmts[at]), sequence([*allocations, *stmts[at + 1 :]])


def overlapped(loop: Any, ahead: Ahead, unit: MatrixUnit) -> Any:
    """The loop over strips, whose body lacks what :func:`split` took, with the scores computed ahead."""
    strip, zero = loop.loop_var, tirx.const(0, "int32")
    following = ahead.of(strip, strip + 1, strip + 1 < loop.extent)
    body = _beside(loop.body, following, unit)
    first = ahead.of(strip, zero, loop.extent > 0)
    return sequence([*first.before, first.tiles, with_body(loop, body)])


def _beside(stmt: Any, ahead: Ahead, unit: MatrixUnit) -> Any:
    """The statement with the loops over weights replaced by those that compute scores as well."""
    if "weights_beside" in _notes(stmt):
        return _both(stmt, ahead, unit)
    if isinstance(stmt, tirx.For):
        return stmt
    return inside(stmt, lambda s: _beside(s, ahead, unit))


def _both(weights: Any, ahead: Ahead, unit: MatrixUnit) -> Any:
    """Tiles of both stages as long as both have one, then what is left of either."""
    tiles = ahead.tiles
    common = tirx.Var("common", "int32")
    shared = unit.interleaved(
        weights.body, substituted(tiles.body, {tiles.loop_var: weights.loop_var})
    )
    return sequence(
        [
            *ahead.before,
            tirx.Bind(common, tirx.min(weights.extent, tiles.extent)),
            tirx.For(weights.loop_var, weights.min, common, weights.kind, shared),
            _from(weights, common),
            _from(tiles, common),
        ]
    )


def _from(loop: Any, first: Any) -> Any:
    """The loop's iterations from one on."""
    place = tirx.Var(f"{loop.loop_var.name}_left", "int32")
    body = substituted(loop.body, {loop.loop_var: place + first})
    return tirx.For(place, loop.min, loop.extent - first, loop.kind, body)


def _notes(stmt: Any) -> Any:
    return stmt.annotations if isinstance(stmt, tirx.For) else {}
