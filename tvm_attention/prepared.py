"""A call that lacks only its addresses, and the memory that a kernel's workers share during it."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Any

import numpy as np

KEPT_BYTES = 64 << 20  # a larger workspace is given back after its call
_ALIGNMENT = 64


class Workspace(threading.local):
    """One per thread: concurrent calls must not share scratch memory."""

    def __init__(self) -> None:
        self.size = 0
        self.address = 0
        self._buffer: Any = None

    def grow(self, size: int) -> tuple[int, Any]:
        """(aligned address of at least ``size`` bytes, what keeps it alive)."""
        buffer = np.empty(size + _ALIGNMENT, dtype=np.uint8)
        address = -(-buffer.ctypes.data // _ALIGNMENT) * _ALIGNMENT
        if size <= KEPT_BYTES:
            self.size, self.address, self._buffer = size, address, buffer
        return address, buffer


workspace = Workspace()


@dataclass(frozen=True, slots=True)
class PreparedCall:
    """A call but for its addresses: ``main`` takes five, then ``arguments``. Main's arguments of the
    numbers ``beside`` are the addresses of the mask and the log-sum-exp, if any, and ``arguments`` hold
    those of the call it was prepared for. ``kept`` is what other arguments are the addresses of."""

    main: Any
    workspace_bytes: int
    threads: int
    arguments: tuple[Any, ...]
    beside: tuple[int, ...] = ()
    kept: tuple[Any, ...] = ()

    def run(self, query: int, key: int, value: int, out: int) -> None:
        """Compute on arrays at these addresses."""
        size = self.workspace_bytes
        if size == 0:
            self.main(query, key, value, out, 0, *self.arguments)
            return
        own = workspace
        if size <= own.size:
            self.main(query, key, value, out, own.address, *self.arguments)
            return
        address, keep = own.grow(size)
        self.main(query, key, value, out, address, *self.arguments)
        del keep
