"""Which stages an expression has: not every workload has all of them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from tvm.s_tir import Schedule


def present(sch: Schedule, names: Iterable[str]) -> list[str]:
    """Those of the stages that the expression has, in the given order."""
    root = sch.get_sblock("root")
    found = {str(sch.get(block).name_hint) for block in sch.get_child_blocks(root)}
    return [name for name in names if name in found]


def place(sch: Schedule, names: Iterable[str], loop: Any) -> None:
    """Compute stages, consumers before what they read, inside a loop."""
    for name in present(sch, names):
        # -2 is the first place its producers allow. The last one is wrong: TVM looks for it before only one
        # of several consumers.
        sch.compute_at(sch.get_sblock(name), loop, preserve_unit_loops=True, index=-2)
