"""Archives of kernels for programs with no Python and no TVM: C entry points over machine code.

:func:`export` builds them; :mod:`tvm_attention.export.archive` loads them with NumPy and ctypes alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tvm_attention.export.building import Exported, export

__all__ = ["Exported", "export"]


def __getattr__(name: str) -> Any:
    # Loading an archive must not import what building one needs.
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from tvm_attention.export import building

    return getattr(building, name)
