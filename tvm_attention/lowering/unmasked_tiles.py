"""Tiles of scores that a mask does not change stay where the matrix unit stored them.

A schedule marks the loops that add a tile of a mask, ``unless_without_effect``, where they do nothing else:
products are then stored where scores belong, and the loops run only if the transposition of the mask's tile
found an element that has an effect.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tvm import tirx

from tvm_attention.compute.scores import with_mask
from tvm_attention.lowering.statements import load_of, with_body


@dataclass(frozen=True)
class UnmaskedTile:
    """Where products belong, and what says whether the mask has an effect."""

    loops: Any  # that add the mask
    products: Any  # the buffer that products would be stored in
    scores: Any  # the buffer they belong in
    place: tuple[Any, ...]  # of the tile in it, its rows and columns left out
    effect: Any  # a buffer of one number, not zero if the mask has an effect

    @classmethod
    def of(cls, stmts: list[Any]) -> UnmaskedTile | None:
        """That of a tile's statements, if they are so marked."""
        for stmt in stmts:
            if isinstance(stmt, tirx.For) and "unless_without_effect" in stmt.annotations:
                store = stmt
                while isinstance(store, tirx.For):
                    store = store.body
                products = load_of("ST", store.value).source
                effect = tirx.decl_buffer((1,), "int32", name="effect", scope="local", layout=None)
                return cls(stmt, products, store.buffer, tuple(store.indices[:-2]), effect)
        return None

    def at(self, store: Any) -> Any:
        """A load of what a store of products is to write."""
        return tirx.BufferLoad(self.scores, [*self.place, *store.indices[-2:]])

    def noted(self, call: Any) -> Any:
        """The statement that makes a transposition's call and keeps what it returns."""
        return tirx.BufferStore(self.effect, self._effect() | call, [_ZERO])

    def start(self) -> list[Any]:
        """Statements before all others of the tile."""
        return [tirx.AllocBuffer(self.effect), tirx.BufferStore(self.effect, _ZERO, [_ZERO])]

    def replaces(self, stmt: Any) -> bool:
        """Whether a statement is not needed: the products' own memory."""
        return isinstance(stmt, tirx.AllocBuffer) and bool(stmt.buffer.same_as(self.products))

    def guarded(self, loops: Any) -> Any:
        """The loops that add the mask, rewritten: to scores in their place, if it has an effect."""
        return tirx.IfThenElse(self._effect() > _ZERO, self._added(loops), None)

    def _added(self, stmt: Any) -> Any:
        if isinstance(stmt, tirx.For):
            return with_body(stmt, self._added(stmt.body))
        score = tirx.BufferLoad(self.scores, stmt.indices)
        return tirx.BufferStore(
            self.scores, with_mask(load_of("MT", stmt.value), score), stmt.indices
        )

    def _effect(self) -> Any:
        return tirx.BufferLoad(self.effect, [_ZERO])


_ZERO = tirx.const(0, "int32")
