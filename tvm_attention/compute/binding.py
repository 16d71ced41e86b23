"""Numbers that an expression uses more than once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tvm import tirx


def bound(value: Any, body: Callable[[Any], Any]) -> Any:
    """``body(value)`` with the float32 value computed once. TVM works on trees: it would copy the value to
    every use, and a softcap with a mask would take a minute to build.

    The result must itself be used once, for a name is bound in one place.
    """
    name = tirx.Var("bound", "float32")
    return tirx.Let(name, value, body(name))
